/* Indexes of saved checkpoints: every accepted box lies in its tensor. */
#include "fuzz.h"

#include "reshard/checkpoint/index.h"
#include "reshard/layout/box.h"

void fuzz_write_seeds(void)
{
    fuzz_seed_text(
        "{\"format\":\"banyan.checkpoint\",\"version\":1,\"tensors\":{\"w\":{\"dtype\":"
        "\"F32\",\"shape\":[4,6]}},\"files\":[{\"file\":\"rank-00000/model.safetensors\","
        "\"pieces\":[{\"local\":\"l\",\"tensor\":\"w\",\"start\":[0,0],\"extent\":[4,6],"
        "\"local_start\":[0,0],\"dim_map\":[0,1]}]}]}");
    fuzz_seed_text(
        "{\"format\":\"banyan.checkpoint\",\"version\":1,\"tensors\":{},\"files\":[{\"file\":"
        "\"a\",\"pieces\":[],\"padding\":[{\"local\":\"l\",\"start\":[0],\"extent\":[2],\"dtype\":"
        "\"F32\",\"fill\":1.5}],\"left_alone\":[{\"local\":\"l\",\"start\":[2],\"extent\":[1]}]}]"
        "}");
    fuzz_seed_text(
        "{\"format\":\"banyan.checkpoint\",\"version\":1,\"tensors\":{\"A_log\":{\"dtype\":"
        "\"F32\",\"shape\":[4]}},\"files\":[{\"file\":\"a\",\"pieces\":[{\"local\":\"a\","
        "\"tensor\":"
        "\"A_log\",\"start\":[0],\"extent\":[4],\"map\":\"negative_exp\"}]}]}");
    fuzz_seed_text("{\"format\":\"banyan.checkpoint\",\"version\":1,\"tensors\":{},\"files\":[]}");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    checkpoint_index index;
    if (!fuzz_took(checkpoint_index_parse("i.json", (const char *)data, size, &index)))
        return 0;
    for (size_t i = 0; i < index.pieces.count; i++) {
        const index_piece *piece = &index.pieces.data[i];
        FUZZ_REQUIRE(piece->file < index.files.count && piece->tensor < index.tensors.count);
        const banyan_local_tensor *tensor = &index.tensors.data[piece->tensor];
        FUZZ_REQUIRE(box_fits(&piece->piece.box, tensor->ndim, tensor->shape));
        for (int g = 0; g < piece->piece.ndim; g++)
            FUZZ_REQUIRE(piece->piece.dim_map[g] >= BANYAN_NO_DIM &&
                         piece->piece.dim_map[g] < piece->local_ndim);
    }
    FUZZ_REQUIRE(index.declares.count == index.files.count);
    for (size_t i = 0; i < index.boxes.count; i++)
        FUZZ_REQUIRE(index.boxes.data[i].file < index.files.count);
    for (size_t i = 0; i < index.files.count; i++)
        FUZZ_REQUIRE(index.files.data[i][0] != '/' && !strstr(index.files.data[i], "/../"));
    checkpoint_index_free(&index);
    return 0;
}
