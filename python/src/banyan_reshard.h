/* Shared by the files that bind layouts, copies, reshards and what uses them. */
#ifndef BANYAN_RESHARD_PYTHON_H
#define BANYAN_RESHARD_PYTHON_H

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
    ~LayoutFile() { banyan_layout_file_destroy(handle); }
};

struct Model {
    banyan_model *handle = nullptr;
    ~Model() { banyan_model_destroy(handle); }
};

struct Rules {
    banyan_rules *handle = nullptr;
    ~Rules() { banyan_rules_destroy(handle); }
};

struct Spec {
    banyan_spec spec;
    std::string text;
};

struct MegatronCase {
    banyan_megatron_case *handle = nullptr;
    ~MegatronCase() { banyan_megatron_case_destroy(handle); }
};

/* ---- calls of Python by C ---- */

/* An exception of a function of Python ends the calls, and is raised when the C call has ended. */
struct Calls {
    std::optional<nb::python_error> error;

    /* `call` runs with the interpreter's lock. Return false if there was an exception. */
    template <typename Call> bool python(Call &&call)
    {
        if (error)
            return false;
        nb::gil_scoped_acquire lock;
        try {
            call();
        } catch (nb::python_error &raised) {
            error = raised;
        } catch (std::exception &raised) {
            PyErr_SetString(PyExc_TypeError, raised.what());
            error.emplace();
        }
        return !error;
    }

    /* Raise the exception. */
    void end()
    {
        if (error)
            throw nb::python_error(*error);
    }
};

#endif
