/* `banyan topo probe`. */
#ifndef TOOLS_TOPO_PROBE_H
#define TOOLS_TOPO_PROBE_H

int topo_probe_command(int argc, char **argv);

#endif
