/* UCX's functions, found when the module is loaded. */
#ifndef UCX_LIBRARY_H
#define UCX_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <ucp/api/ucp.h>

#define UCX_FUNCTIONS(F)                                                                           \
    F(ucp_get_version)                                                                             \
    F(ucp_config_read)                                                                             \
    F(ucp_config_modify)                                                                           \
    F(ucp_config_print)                                                                            \
    F(ucp_config_release)                                                                          \
    F(ucp_init_version)                                                                            \
    F(ucp_context_query)                                                                           \
    F(ucp_cleanup)                                                                                 \
    F(ucp_worker_create)                                                                           \
    F(ucp_worker_destroy)                                                                          \
    F(ucp_worker_query)                                                                            \
    F(ucp_worker_release_address)                                                                  \
    F(ucp_worker_get_efd)                                                                          \
    F(ucp_worker_arm)                                                                              \
    F(ucp_worker_progress)                                                                         \
    F(ucp_worker_set_am_recv_handler)                                                              \
    F(ucp_ep_create)                                                                               \
    F(ucp_ep_close_nbx)                                                                            \
    F(ucp_ep_flush_nbx)                                                                            \
    F(ucp_ep_rkey_unpack)                                                                          \
    F(ucp_ep_evaluate_perf)                                                                        \
    F(ucp_rkey_destroy)                                                                            \
    F(ucp_rkey_pack)                                                                               \
    F(ucp_rkey_buffer_release)                                                                     \
    F(ucp_mem_map)                                                                                 \
    F(ucp_mem_unmap)                                                                               \
    F(ucp_put_nbx)                                                                                 \
    F(ucp_get_nbx)                                                                                 \
    F(ucp_am_send_nbx)                                                                             \
    F(ucp_request_check_status)                                                                    \
    F(ucp_request_free)                                                                            \
    F(ucs_status_string)

#define UCX_DECLARE(name) __typeof__(&(name)) name;
typedef struct ucx_library {
    UCX_FUNCTIONS(UCX_DECLARE)
} ucx_library;
#undef UCX_DECLARE

/* Valid after ucx_library_open. */
extern ucx_library ucx_calls;

/* Load libucp: BANYAN_UCX names it, otherwise the system finds libucp.so.0. False, with the reason,
 * if that fails. Call it once. */
bool ucx_library_open(char *reason, size_t reason_bytes);

#endif
