/* A reshard plan is proved, of a case in Megatron-Core's terms. */
#ifndef TOOLS_CHECK_RESHARD_H
#define TOOLS_CHECK_RESHARD_H

/* Exit code: 0 sound, 1 not, 2 no case. */
int check_reshard(const char *who, const char *path);

#endif
