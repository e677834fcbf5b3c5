/* Specs: command-line text becomes numbers, or an error with the key and the place. */
#include "support/test.h"

#include "reshard/model/spec.h"

static banyan_spec parsed(const char *text)
{
    banyan_spec spec;
    CHECK_OK(banyan_spec_parse(text, &spec));
    return spec;
}

static void keys_become_numbers_and_the_rest_defaults(void **state)
{
    (void)state;
    banyan_spec spec = parsed("tp=2,pp=3,dp=4,ep=8,etp=1,fsdp=5,packing=vllm,vocab_multiple=64");
    assert_int_equal(spec.tp, 2);
    assert_int_equal(spec.pp, 3);
    assert_int_equal(spec.dp, 4);
    assert_int_equal(spec.fsdp, 5);
    assert_int_equal(spec.ep, 8);
    assert_int_equal(spec.etp, 1);
    assert_string_equal(spec.packing, "vllm");
    assert_int_equal(spec.vocab_multiple, 64);
    assert_int_equal(banyan_spec_world_size(&spec), 120);

    spec = parsed("");
    assert_int_equal(banyan_spec_world_size(&spec), 1);
    assert_string_equal(spec.packing, "hf");
    assert_int_equal(spec.vocab_multiple, -1);
    assert_int_equal(spec.head, 0);
    assert_int_equal(parsed("tp=4,vocab_multiple=0").vocab_multiple, 0);
    assert_int_equal(parsed("tp=4,head=64").head, 64);
}

static void experts_are_cut_like_the_rest_unless_ep_distributes_them(void **state)
{
    (void)state;
    assert_int_equal(parsed("tp=4").etp, 4);
    assert_int_equal(parsed("tp=4,ep=2").etp, 1);
    assert_int_equal(parsed("tp=4,ep=1").etp, 1);
    assert_int_equal(parsed("tp=4,etp=2").etp, 2);
}

static void the_worlds_size_implies_the_replicas(void **state)
{
    (void)state;
    banyan_spec spec = parsed("tp=8,pp=8,ep=16,world=1024");
    assert_int_equal(spec.dp, 16);
    spec = parsed("world=1024,tp=8,ep=64");
    assert_int_equal(spec.dp, 128);
    assert_int_equal(parsed("tp=2,dp=3,world=6").dp, 3);
    assert_int_equal(parsed("tp=2,fsdp=4,world=16").dp, 2);
}

static void expect_refused(const char *text, const char *part)
{
    banyan_spec spec = {.tp = 77};
    CHECK_FAILS(banyan_spec_parse(text, &spec), BANYAN_ERR_INVALID, part);
    assert_int_equal(spec.tp, 77);
}

static void a_wrong_spec_is_refused_with_the_place(void **state)
{
    (void)state;
    expect_refused("tp=2,qp=2", "\"qp\" at character 6 is not a key");
    expect_refused("tp=2,pp", "\"pp\" at character 6 is not key=value");
    expect_refused("tp=2,,pp=2", "\"\" at character 6 is not key=value");
    expect_refused("tp=2,", "\",\" at character 5 ends the text");
    expect_refused("tp=two", "\"two\" at character 4 is not a number from 1");
    expect_refused("tp=", "\"\" at character 4 is not a number");
    expect_refused("tp=0", "\"0\" at character 4 is not a number from 1");
    expect_refused("tp=-1", "\"-1\" at character 4");
    expect_refused("tp=2147483648", "\"2147483648\" at character 4");
    expect_refused("tp=99999999999999999999999", "at character 4");
    expect_refused("tp=2,tp=2", "\"tp\" at character 6 is there twice");
    expect_refused("packing=vllm,packing=hf", "\"packing\" at character 14 is there twice");
    expect_refused("packing=", "\"\" at character 9 is not a packing's name");
    expect_refused("packing=a-b", "is not a packing's name");
    expect_refused("packing=a_name_of_more_than_23_letters", "is not a packing's name");
    expect_refused("tp=65536,pp=65536", "more than 2147483647 ranks");
    expect_refused("tp=65536,dp=65536", "more than 2147483647 ranks");
    expect_refused("tp=3,world=8", "world=8 is not a multiple of tp × pp × fsdp = 3");
    expect_refused("tp=2,dp=3,world=8", "world=8 leaves dp=4, not 3");
    expect_refused("tp=2,pp=2,ep=4",
                   "the 2 ranks of a stage (tp=2 × fsdp=1 × dp=1) do not divide by etp=1 × ep=4");
}

/* Walk all ranks: places are unique, and neighbours along an axis are its stride apart. */
static void check_axes(const banyan_spec *spec, bool expert)
{
    int ranks = banyan_spec_world_size(spec);
    for (int rank = 0; rank < ranks; rank++) {
        spec_place place = spec_place_of(spec, rank);
        const spec_axes *axes = expert ? &place.expert : &place.dense;
        const spec_axis no_owner = {0, 1, 0};
        const spec_axis list[] = {axes->shard, axes->rows, axes->replicas, place.stage,
                                  expert ? place.expert_owner : no_owner};
        int sum = 0, product = 1;
        for (int i = 0; i < 5; i++) {
            assert_true(list[i].index >= 0 && list[i].index < list[i].count);
            sum += list[i].index * list[i].stride;
            product *= list[i].count;
        }
        assert_int_equal(sum, rank);
        assert_int_equal(product, ranks);
    }
}

static void every_rank_has_one_place_on_both_grids(void **state)
{
    (void)state;
    static const char *const texts[] = {"tp=2,pp=3,dp=4,fsdp=2", "tp=2,fsdp=8,ep=4",
                                        "tp=4,dp=6,ep=3,etp=2", "tp=1,fsdp=6,dp=2,ep=4,pp=2"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        banyan_spec spec = parsed(texts[i]);
        check_axes(&spec, false);
        check_axes(&spec, true);
    }
    /* tp is fastest, then fsdp, dp, and the stages; for experts etp, ep, then the rest. */
    banyan_spec spec = parsed("tp=2,fsdp=3,dp=4,pp=2,ep=4,etp=2");
    spec_place place = spec_place_of(&spec, 24 + 2 * (3 * 3 + 2) + 1);
    assert_int_equal(place.dense.shard.index, 1);
    assert_int_equal(place.dense.rows.index, 2);
    assert_int_equal(place.dense.replicas.index, 3);
    assert_int_equal(place.stage.index, 1);
    assert_int_equal(place.expert.shard.index, 1);
    assert_int_equal(place.expert_owner.index, 3);
    /* 24 ÷ (2 × 4) replicas of an expert, of which fsdp=3 takes all. */
    assert_int_equal(place.expert.rows.count, 3);
    assert_int_equal(place.expert.rows.index, 2);
    assert_int_equal(place.expert.replicas.count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_become_numbers_and_the_rest_defaults),
        cmocka_unit_test(experts_are_cut_like_the_rest_unless_ep_distributes_them),
        cmocka_unit_test(the_worlds_size_implies_the_replicas),
        cmocka_unit_test(a_wrong_spec_is_refused_with_the_place),
        cmocka_unit_test(every_rank_has_one_place_on_both_grids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
