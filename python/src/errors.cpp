/* Statuses become exceptions. */
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
