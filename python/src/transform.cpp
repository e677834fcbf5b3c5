/* Built-in transforms, which change the element format of tensors during a reshard. */
#include "banyan_reshard.h"

#include <banyan/transform.h>

struct Cast : Transform {};
struct Mxfp8 : Transform {};

static banyan_transform_side transform_side_of(const std::string &side)
{
    if (side == "default")
        return BANYAN_TRANSFORM_SIDE_DEFAULT;
    if (side == "sender")
        return BANYAN_TRANSFORM_AT_SENDER;
    if (side == "receiver")
        return BANYAN_TRANSFORM_AT_RECEIVER;
    throw nb::value_error("side is \"default\", \"sender\" or \"receiver\"");
}

static banyan_mxfp8_layout scales_layout_of(const std::string &layout)
{
    if (layout != "plain" && layout != "swizzled")
        throw nb::value_error("scales are \"plain\" or \"swizzled\"");
    return layout == "plain" ? BANYAN_MXFP8_PLAIN : BANYAN_MXFP8_SWIZZLED;
}

static std::shared_ptr<Cast> make_cast(nb::object names, const std::string &side)
{
    banyan_cast_options options = BANYAN_CAST_OPTIONS_INIT;
    Texts globs(names);
    options.side = transform_side_of(side);
    options.names = globs.pointers.data();
    options.name_count = globs.pointers.size();
    auto cast = std::make_shared<Cast>();
    check(banyan_cast_create(&options, &cast->handle));
    return cast;
}

static std::shared_ptr<Mxfp8> make_mxfp8(nb::object names, const std::string &side,
                                         const std::string &rule, const std::string &scales)
{
    banyan_mxfp8_options options = BANYAN_MXFP8_OPTIONS_INIT;
    Texts globs(names);
    if (rule != "round_up" && rule != "ocp")
        throw nb::value_error("rule is \"round_up\" or \"ocp\"");
    options.side = transform_side_of(side);
    options.rule = rule == "ocp" ? BANYAN_MXFP8_OCP : BANYAN_MXFP8_ROUND_UP;
    options.layout = scales_layout_of(scales);
    options.names = globs.pointers.data();
    options.name_count = globs.pointers.size();
    auto mxfp8 = std::make_shared<Mxfp8>();
    check(banyan_mxfp8_create(&options, &mxfp8->handle));
    return mxfp8;
}

static void bind_scales(Mxfp8 &mxfp8, const std::string &name, nb::handle scales)
{
    if (scales.is_none()) {
        check(banyan_mxfp8_bind_scales(mxfp8.handle, name.c_str(), nullptr));
        mxfp8.scales.erase(name);
        return;
    }
    Tensor tensor(scales, "scales", true, true);
    check(banyan_mxfp8_bind_scales(mxfp8.handle, name.c_str(), &tensor.t));
    mxfp8.scales.erase(name);
    mxfp8.scales.emplace(name, std::move(tensor));
}

static nb::object scales_shape(nb::handle shape, const std::string &scales)
{
    Shape s = shape_of(shape, "shape");
    int ndim;
    int64_t extents[BANYAN_MAX_DIMS];
    check(banyan_mxfp8_scales_shape(scales_layout_of(scales), s.ndim, s.extents, &ndim, extents));
    return tuple_of(extents, ndim);
}

void bind_transform(nb::module_ &m)
{
    nb::class_<Transform>(m, "Transform",
                          "Changes the element format of tensors during a reshard: Cast or Mxfp8.\n\n"
                          "All ranks of a plan use the same transform with the same options.");
    auto cast = nb::class_<Cast, Transform>(
        m, "Cast", "Casts tensors whose source and destination differ among float32, float16 and "
                   "bfloat16.");
    def_new(cast, make_cast,
            "names: collections.abc.Iterable[str] = (), *, side: typing.Literal['default', "
            "'sender', 'receiver'] = 'default'",
            "``names``: patterns of global tensors; empty: all. ``side``: the rank that converts; "
            "by default the one that makes fewer bytes travel.",
            "names"_a = nb::make_tuple(), nb::kw_only(), "side"_a = "default");
    auto mxfp8 = nb::class_<Mxfp8, Transform>(
        m, "Mxfp8",
        "Quantizes tensors from float32, float16 or bfloat16 to float8_e4m3fn with a scale for "
        "each 32 elements (MXFP8), and back.");
    def_new(mxfp8, make_mxfp8,
            "names: collections.abc.Iterable[str] = (), *, side: typing.Literal['default', "
            "'sender', 'receiver'] = 'default', rule: typing.Literal['round_up', 'ocp'] = "
            "'round_up', scales: typing.Literal['plain', 'swizzled'] = 'plain'",
            "``names``: patterns of global tensors; empty: all. ``side``: the rank that converts. "
            "By default the receiver quantizes, and the sender dequantizes; the other side halves "
            "the bytes that travel, and needs slices of whole blocks. ``rule``: for scales; OCP's "
            "may saturate. ``scales``: their order in memory, as tensor cores read them if "
            "swizzled.",
            "names"_a = nb::make_tuple(), nb::kw_only(), "side"_a = "default",
            "rule"_a = "round_up", "scales"_a = "plain");
    mxfp8
        .def("bind_scales", bind_scales, "name"_a, "scales"_a.none(),
             nb::sig("def bind_scales(self, name: str, scales: banyan.TensorLike | None) -> None"),
             "Set the memory for the scales of this rank's local tensor ``name``; None removes it. "
             "Runs write the scales of destinations and read those of sources. Their type is uint8 "
             "or float8_e8m0fnu. Local.")
        .def_static("scales_shape", scales_shape, "shape"_a, "scales"_a = "plain",
                    nb::sig("def scales_shape(shape: collections.abc.Sequence[int], scales: "
                            "typing.Literal['plain', 'swizzled'] = 'plain') -> tuple[int, ...]"),
                    "Return the shape of the scales of a tensor of ``shape``.");
}
