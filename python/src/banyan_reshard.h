/* Shared by the files that bind layouts, copies, reshards and what uses them. */
#ifndef BANYAN_RESHARD_PYTHON_H
#define BANYAN_RESHARD_PYTHON_H

#include <deque>
#include <functional>
#include <unordered_map>

#include "banyan_python.h"

/* ---- arguments (layout.cpp) ---- */

/* The items of any iterable, without a call of Python for each. */
class Items {
  public:
    explicit Items(nb::handle iterable);
    size_t size() const { return count; }
    nb::handle operator[](size_t i) const;

  private:
    nb::object held; /* a tuple or a list */
    bool is_tuple;
    size_t count;
};

/* True for tuples and lists: many values rather than one. */
inline bool is_many(nb::handle value)
{
    return PyTuple_Check(value.ptr()) || PyList_Check(value.ptr());
}

struct Shape {
    int ndim = 0;
    int64_t extents[BANYAN_MAX_DIMS];
};

/* Integers, one for each dimension: a tuple, list, torch.Size, or one number. */
Shape shape_of(nb::handle shape, const char *name);
/* UTF-8 text that lives as long as the object. */
const char *text_of(nb::handle text, const char *name);
banyan_side side_of(nb::handle side);

/* Text that C lends for the duration of a call: keeps the strings, and pointers to them. */
struct Texts {
    std::vector<std::string> strings;
    std::vector<const char *> pointers;
    explicit Texts(nb::handle iterable);
};

/* Return the tuple of `count` integers. */
template <typename Int> nb::object tuple_of(const Int *values, int count)
{
    nb::object tuple = nb::steal(PyTuple_New(count));
    for (int i = 0; i < count; i++)
        PyTuple_SetItem(tuple.ptr(), i, PyLong_FromLongLong(values[i]));
    return tuple;
}

/* ---- layouts (layout.cpp) ---- */

struct Box {
    banyan_box box;
};

struct LocalTensor {
    std::string name;
    DLDataType dtype;
    Shape shape;
    explicit LocalTensor(const banyan_local_tensor &tensor);
};

struct Layout {
    banyan_layout *handle = nullptr;
    Layout() { ::check(banyan_layout_create(&handle)); }
    Layout(const Layout &) = delete;
    ~Layout() { banyan_layout_destroy(handle); }
    /* Raise the first error of an addition. */
    void check() const { ::check(banyan_layout_status(handle)); }
};

inline const banyan_layout *handle_of(const Layout *layout)
{
    return layout ? layout->handle : nullptr;
}

struct LayoutFile {
    banyan_layout_file *handle = nullptr;
    LayoutFile() = default;
    LayoutFile(const LayoutFile &) = delete;
    ~LayoutFile() { banyan_layout_file_destroy(handle); }
};

struct Model {
    banyan_model *handle = nullptr;
    Model() = default;
    Model(const Model &) = delete;
    ~Model() { banyan_model_destroy(handle); }
};

struct Rules {
    banyan_rules *handle = nullptr;
    Rules() = default;
    Rules(const Rules &) = delete;
    ~Rules() { banyan_rules_destroy(handle); }
};

struct Spec {
    banyan_spec spec;
    std::string text;
};

struct MegatronCase {
    banyan_megatron_case *handle = nullptr;
    MegatronCase() = default;
    MegatronCase(const MegatronCase &) = delete;
    ~MegatronCase() { banyan_megatron_case_destroy(handle); }
};

/* ---- copies (copy.cpp) ---- */

struct CopyService : Resource {
    banyan_copy_service *handle = nullptr;
    std::deque<Tensor> queued; /* tensors of the queue, which stay as long as it */
    nb::object like;           /* one of them, of the library whose stream a run takes */
    LateProgress progress;

    explicit CopyService(nb::object progress) : progress(progress, "moving", true) {}
    bool is_open() const override { return handle != nullptr; }
    banyan_status close() override
    {
        banyan_copy_service_close(handle);
        handle = nullptr;
        return BANYAN_OK;
    }
    ~CopyService() override { close(); }
};

/* ---- checkpoints (checkpoint.cpp) ---- */

struct Checkpoint : Resource {
    banyan_checkpoint *handle = nullptr;
    std::string path;

    bool is_open() const override { return handle != nullptr; }
    banyan_status close() override
    {
        banyan_checkpoint_close(handle);
        handle = nullptr;
        return BANYAN_OK;
    }
    ~Checkpoint() override { close(); }
};

/* ---- transforms (transform.cpp) ---- */

struct Transform {
    banyan_transform *handle = nullptr;
    std::unordered_map<std::string, Tensor> scales; /* which must live as long as this */
    Transform() = default;
    Transform(const Transform &) = delete;
    virtual ~Transform() { banyan_transform_destroy(handle); }
};

/* ---- reshards (reshard.cpp) ---- */

struct Tensors : Resource {
    banyan_tensors *handle = nullptr;
    std::vector<std::string> names;
    std::unordered_map<std::string_view, size_t> by_name; /* of views of `names` */
    std::deque<Tensor> lent;                              /* empty: this object's own memory */
    nb::list given;                                       /* the objects of Python that lent it */
    std::string read_only; /* name of a tensor that cannot be written to, if there is one */

    bool is_open() const override { return handle != nullptr; }
    banyan_status close() override
    {
        banyan_tensors_destroy(handle);
        handle = nullptr;
        return BANYAN_OK;
    }
    ~Tensors() override { close(); }
};

struct ReshardPlan : Resource {
    banyan_reshard_plan *handle = nullptr;
    std::shared_ptr<Transform> transform;
    /* The plan keeps the schedules of its last run, which had these. */
    std::shared_ptr<CopyService> service;
    std::shared_ptr<Tensors> source, destination;

    bool is_open() const override { return handle != nullptr; }
    banyan_status close() override
    {
        banyan_reshard_plan_destroy(handle);
        handle = nullptr;
        return BANYAN_OK;
    }
    ~ReshardPlan() override { close(); }
};

/* Options of a plan, by the names of banyan_reshard_options. */
struct ReshardOptions {
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    std::shared_ptr<Transform> transform;
    explicit ReshardOptions(const nb::kwargs &given);

  private:
    std::optional<Texts> skip;
};

/* The options for signatures: those of every plan, and those of a plan that runs. */
#define PLAN_OPTIONS                                                                               \
    "min_split_bytes: int = 0, require_whole_source: bool = False, skip: "                         \
    "collections.abc.Iterable[str] = (), transform: Transform | None = None, each_rank_fetches: "  \
    "bool = False"
#define RUN_OPTIONS                                                                                \
    PLAN_OPTIONS ", max_staging_bytes: int = 0, checksums: bool = False, timeout: float | None = " \
                 "None"

#endif
