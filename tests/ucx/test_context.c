/* UCX uses CUDA only if it is asked to: whatever list of transports UCX has, those of CUDA are
 * taken off. A table of functions stands for UCX. */
#include "support/test.h"

#if __has_include(<ucp/api/ucp.h>)
#include "ucx/context.c"

static const char *configured;   /* the list that UCX reads */
static char list[256];           /* the list that is in force */
static int contexts, most, made; /* open now, at most, and ever */
ucx_library ucx_calls;

static ucs_status_t read_list(const char *prefix, const char *file, ucp_config_t **config)
{
    (void)prefix, (void)file;
    snprintf(list, sizeof list, "%s", configured);
    *config = NULL;
    return UCS_OK;
}

static void print_lists(const ucp_config_t *config, FILE *stream, const char *title,
                        ucs_config_print_flags_t flags)
{
    (void)config, (void)title, (void)flags;
    fprintf(stream, "UCX_NET_DEVICES=all\nUCX_TLS=%s\nUCX_PROTOS=cuda,all\n", list);
}

static ucs_status_t modify_list(ucp_config_t *config, const char *name, const char *value)
{
    (void)config;
    assert_string_equal(name, "TLS");
    snprintf(list, sizeof list, "%s", value);
    return UCS_OK;
}

static void release_list(ucp_config_t *config)
{
    (void)config;
}

static ucs_status_t make_context(unsigned major, unsigned minor, const ucp_params_t *params,
                                 const ucp_config_t *config, ucp_context_h *context)
{
    (void)major, (void)minor, (void)config;
    assert_true(params->features & UCP_FEATURE_WAKEUP);
    *context = (ucp_context_h)(void *)list;
    made++;
    contexts++;
    most = contexts > most ? contexts : most;
    return UCS_OK;
}

static void end_context(ucp_context_h context)
{
    assert_ptr_equal(context, list);
    contexts--;
}

static ucs_status_t tell_memory(ucp_context_h context, ucp_context_attr_t *attributes)
{
    (void)context;
    bool names_cuda = strstr(list, "cuda") || strstr(list, "gdr_copy");
    bool has_cuda = strcmp(list, "all") == 0 || (list[0] == '^' ? !names_cuda : names_cuda);
    attributes->memory_types = UCS_BIT(UCS_MEMORY_TYPE_HOST);
    if (has_cuda)
        attributes->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
    return UCS_OK;
}

banyan_status ucx_failed(const ucx *of, const char *call, ucs_status_t status)
{
    (void)of;
    fail_msg("%s: %d", call, status);
    return BANYAN_ERR_SYSTEM;
}

banyan_status ucx_no_memory(const ucx *of, size_t bytes)
{
    (void)of;
    fail_msg("no memory for %zu bytes", bytes);
    return BANYAN_ERR_NO_MEMORY;
}

static banyan_status open_with(const char *given, const char *way, ucx *of)
{
    ucx_calls = (ucx_library){.ucp_config_read = read_list,
                              .ucp_config_print = print_lists,
                              .ucp_config_modify = modify_list,
                              .ucp_config_release = release_list,
                              .ucp_init_version = make_context,
                              .ucp_cleanup = end_context,
                              .ucp_context_query = tell_memory};
    *of = (ucx){.size = 2};
    configured = given;
    contexts = most = made = 0;
    if (way)
        setenv("BANYAN_GPU_NETWORK", way, 1);
    else
        unsetenv("BANYAN_GPU_NETWORK");
    return ucx_context_open(of);
}

static void transports_of_cuda_are_taken_off(void **state)
{
    (void)state;
    static const struct {
        const char *given, *left;
        int made;
    } cases[] = {
        {"all", "^cuda", 2},
        {"^sysv,posix", "^sysv,posix,cuda", 2},
        {"tcp,cuda_copy,cuda_ipc,self", "tcp,self", 2},
        {"cuda,\\gdr_copy,\\cuda_ipc,rc_x", "rc_x", 2},
        {"^cuda", "^cuda", 1},
        {"tcp", "tcp", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ucx of;
        CHECK_OK(open_with(cases[i].given, i % 2 ? "pinned" : NULL, &of));
        assert_string_equal(list, cases[i].left);
        assert_int_equal(made, cases[i].made);
        assert_int_equal(contexts, 1);
        assert_int_equal(most, 1);
        assert_false(of.has_cuda);
    }
}

static void a_list_of_cuda_alone_is_refused(void **state)
{
    (void)state;
    ucx of;
    CHECK_FAILS(open_with("cuda,gdr_copy", NULL, &of), BANYAN_ERR_INVALID,
                "UCX_TLS has transports of CUDA only, which need BANYAN_GPU_NETWORK=direct");
    assert_int_equal(contexts, 0);
    assert_null(of.context);
}

static void direct_access_leaves_the_list(void **state)
{
    (void)state;
    ucx of;
    CHECK_OK(open_with("tcp,cuda", "direct", &of));
    assert_string_equal(list, "tcp,cuda");
    assert_int_equal(made, 1);
    assert_true(of.has_cuda);
    CHECK_OK(open_with("tcp", "direct", &of)); /* the user keeps UCX from CUDA */
    assert_false(of.has_cuda);
    CHECK_FAILS(open_with("all", "fast", &of), BANYAN_ERR_INVALID,
                "BANYAN_GPU_NETWORK is \"fast\", and should be direct or pinned");
    assert_int_equal(made, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transports_of_cuda_are_taken_off),
        cmocka_unit_test(a_list_of_cuda_alone_is_refused),
        cmocka_unit_test(direct_access_leaves_the_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    printf("skipped: UCX's headers are missing\n");
    return 77;
}
#endif
