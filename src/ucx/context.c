/* UCX's context, with the transports that UCX may use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ucx/ucx.h"

#define TLS "UCX_TLS="

/* BANYAN_GPU_NETWORK: "pinned", the default, or "direct". */
static banyan_status way_find(bool *is_direct)
{
    const char *way = getenv("BANYAN_GPU_NETWORK");
    *is_direct = way && strcmp(way, "direct") == 0;
    if (!way || !way[0] || *is_direct || strcmp(way, "pinned") == 0)
        return BANYAN_OK;
    return banyan_error_set(BANYAN_ERR_INVALID,
                            "ucx: BANYAN_GPU_NETWORK is \"%s\", and should be direct or pinned",
                            way);
}

/* Make a context, and find out whether it reaches memory of GPUs. */
static banyan_status context_make(ucx *of, const ucp_config_t *config)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
        .features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .estimated_num_eps = (size_t)of->size,
    };
    ucs_status_t status =
        ucx_calls.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &of->context);
    if (status != UCS_OK) {
        of->context = NULL;
        return ucx_failed(of, "ucp_init", status);
    }
    ucp_context_attr_t context = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    status = ucx_calls.ucp_context_query(of->context, &context);
    of->has_cuda = (context.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
    return status == UCS_OK ? BANYAN_OK : ucx_failed(of, "ucp_context_query", status);
}

static bool is_of_cuda(const char *transport)
{
    transport += transport[0] == '\\';
    return strncmp(transport, "cuda", 4) == 0 || strncmp(transport, "gdr_copy", 8) == 0;
}

/* Take the transports of CUDA off a list as in UCX_TLS: "all", names, or names behind "^". */
static void list_without_cuda(char *list, char *without)
{
    if (list[0] == '^' || strcmp(list, "all") == 0) {
        strcpy(without, list[0] == '^' ? list : "^");
        strcat(without, list[0] == '^' ? ",cuda" : "cuda");
        return;
    }
    without[0] = 0;
    char *rest, *name = strtok_r(list, ",", &rest);
    for (; name; name = strtok_r(NULL, ",", &rest)) {
        if (is_of_cuda(name))
            continue;
        strcat(without, without[0] ? "," : "");
        strcat(without, name);
    }
}

/* UCX reads its configuration from the environment and from files. */
static banyan_status config_forbid_cuda(const ucx *of, ucp_config_t *config)
{
    char *text = NULL, *without = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream) {
        ucx_calls.ucp_config_print(config, stream, NULL, UCS_CONFIG_PRINT_CONFIG);
        (void)fputs("\n" TLS "all\n", stream); /* for a text without the list */
        (void)fclose(stream);
        without = malloc(bytes + sizeof "^,cuda");
    }
    banyan_status status = text && without ? BANYAN_OK : ucx_no_memory(of, bytes);
    if (status == BANYAN_OK) {
        char *list = strstr(text, TLS) + sizeof TLS - 1;
        list[strcspn(list, "\n")] = 0;
        list_without_cuda(list, without);
    }
    if (status == BANYAN_OK && !without[0])
        status = banyan_error_set(BANYAN_ERR_INVALID,
                                  "ucx: UCX_TLS has transports of CUDA only, which need "
                                  "BANYAN_GPU_NETWORK=direct");
    if (status == BANYAN_OK) {
        ucs_status_t modified = ucx_calls.ucp_config_modify(config, "TLS", without);
        if (modified != UCS_OK)
            status = ucx_failed(of, "ucp_config_modify", modified);
    }
    free(without);
    free(text);
    return status;
}

/* A UCX that uses CUDA waits for the device's kernels, when it first connects and when it first
 * meets memory of the device (cuMemFree, cuCtxSetFlags). These kernels may wait for what UCX is to
 * send. So it uses CUDA only if the user asks for it, and callers connect before kernels wait. */
banyan_status ucx_context_open(ucx *of)
{
    bool is_direct;
    ucp_config_t *config;
    banyan_status status = way_find(&is_direct);
    if (status != BANYAN_OK)
        return status;
    ucs_status_t read = ucx_calls.ucp_config_read(NULL, NULL, &config);
    if (read != UCS_OK)
        return ucx_failed(of, "ucp_config_read", read);
    status = context_make(of, config);
    if (status == BANYAN_OK && of->has_cuda && !is_direct) {
        ucx_calls.ucp_cleanup(of->context);
        of->context = NULL;
        status = config_forbid_cuda(of, config);
        if (status == BANYAN_OK)
            status = context_make(of, config);
    }
    ucx_calls.ucp_config_release(config);
    return status;
}
