#include <banyan/core.h>

#include <string.h>
#include <strings.h>

#include "core/error.h"

#define BANYAN_STRING_(x) #x
#define BANYAN_STRING(x) BANYAN_STRING_(x)
#define BANYAN_VERSION_TEXT(major, minor, patch)                                                   \
    BANYAN_STRING(major) "." BANYAN_STRING(minor) "." BANYAN_STRING(patch)

const char *banyan_version(void)
{
    return BANYAN_VERSION_TEXT(BANYAN_VERSION_MAJOR, BANYAN_VERSION_MINOR, BANYAN_VERSION_PATCH);
}

/* The first name of a type is safetensors'. */
static const struct dtype_name {
    const char *name;
    DLDataType dtype;
} dtype_names[] = {
    {"BF16", {kDLBfloat, 16, 1}},
    {"F32", {kDLFloat, 32, 1}},
    {"F16", {kDLFloat, 16, 1}},
    {"F64", {kDLFloat, 64, 1}},
    {"F8_E4M3", {BANYAN_DL_FLOAT8_E4M3FN, 8, 1}},
    {"F8_E5M2", {BANYAN_DL_FLOAT8_E5M2, 8, 1}},
    {"F8_E8M0", {BANYAN_DL_FLOAT8_E8M0FNU, 8, 1}},
    {"I8", {kDLInt, 8, 1}},
    {"I16", {kDLInt, 16, 1}},
    {"I32", {kDLInt, 32, 1}},
    {"I64", {kDLInt, 64, 1}},
    {"U8", {kDLUInt, 8, 1}},
    {"U16", {kDLUInt, 16, 1}},
    {"U32", {kDLUInt, 32, 1}},
    {"U64", {kDLUInt, 64, 1}},
    {"bfloat16", {kDLBfloat, 16, 1}},
    {"float32", {kDLFloat, 32, 1}},
    {"float16", {kDLFloat, 16, 1}},
    {"float64", {kDLFloat, 64, 1}},
    {"float", {kDLFloat, 32, 1}},
    {"half", {kDLFloat, 16, 1}},
    {"double", {kDLFloat, 64, 1}},
    {"float8_e4m3fn", {BANYAN_DL_FLOAT8_E4M3FN, 8, 1}},
    {"float8_e5m2", {BANYAN_DL_FLOAT8_E5M2, 8, 1}},
    {"float8_e8m0fnu", {BANYAN_DL_FLOAT8_E8M0FNU, 8, 1}},
    {"int8", {kDLInt, 8, 1}},
    {"int16", {kDLInt, 16, 1}},
    {"int32", {kDLInt, 32, 1}},
    {"int64", {kDLInt, 64, 1}},
    {"uint8", {kDLUInt, 8, 1}},
};

static const size_t dtype_name_count = sizeof(dtype_names) / sizeof(dtype_names[0]);

size_t banyan_dtype_bytes(DLDataType dtype)
{
    size_t bits = (size_t)dtype.bits * dtype.lanes;
    return bits % 8 == 0 ? bits / 8 : 0;
}

bool banyan_dtype_equal(DLDataType a, DLDataType b)
{
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

const char *banyan_dtype_name(DLDataType dtype)
{
    for (size_t i = 0; i < dtype_name_count; i++) {
        if (banyan_dtype_equal(dtype_names[i].dtype, dtype))
            return dtype_names[i].name;
    }
    return "?";
}

banyan_status banyan_dtype_parse(const char *name, DLDataType *dtype)
{
    const char *bare = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
    for (size_t i = 0; i < dtype_name_count; i++) {
        if (strcasecmp(dtype_names[i].name, bare) == 0) {
            *dtype = dtype_names[i].dtype;
            return BANYAN_OK;
        }
    }
    return error_set(BANYAN_ERR_NOT_FOUND, "\"%s\" names no element type", name);
}
