/* Statuses become exceptions; progress becomes calls of Python. */
#include "banyan_python.h"

/* Names of the exceptions in banyan._errors, in the order of banyan_status. */
static const char *const exception_names[] = {
    "Error",
    "Invalid",
    "OutOfMemory",
    "SystemFailure",
    "Timeout",
    "PeerLost",
    "Aborted",
    "Unsupported",
    "FormatError",
    "Mismatch",
    "NotFound",
    "Corrupt",
    "Refused",
    "NvshmemFailure",
};

void raise_status(banyan_status status)
{
    size_t known = sizeof exception_names / sizeof *exception_names;
    raise_named((size_t)status < known ? exception_names[status] : "Error");
}

void raise_named(const char *name)
{
    /* A signal's handler has raised an exception while the call waited. */
    if (PyErr_Occurred())
        throw nb::python_error();
    std::string message = banyan_last_error();
    nb::object exception = nb::module_::import_("banyan._errors").attr(name);
    PyErr_SetObject(exception.ptr(), nb::str(message.c_str(), message.size()).ptr());
    throw nb::python_error();
}

Progress::Progress(nb::object argument, const char *what, bool bytes) : function(nb::none())
{
    is_bar = argument.is(nb::bool_(true));
    if (is_bar)
        function = nb::module_::import_("banyan._progress").attr("begin")(what, bytes);
    else if (!argument.is_none() && !argument.is(nb::bool_(false)))
        function = argument;
    is_bar = is_bar && is_wanted();
}

Progress::~Progress()
{
    if (!is_bar)
        return;
    /* The call's own exception goes on; a terminal that is gone is no error. */
    nb::error_scope scope;
    try {
        function.attr("close")();
    } catch (nb::python_error &error) {
        error.discard_as_unraisable(function);
    }
}
