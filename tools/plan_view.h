/* `banyan plan view`. */
#ifndef TOOLS_PLAN_VIEW_H
#define TOOLS_PLAN_VIEW_H

int plan_view_command(int argc, char **argv);

#endif
