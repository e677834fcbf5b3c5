#include "banyan_python.h"

NB_MODULE(_core, m)
{
    /* Tensors of other libraries may outlive the interpreter, and hold memory of Banyan. */
    nb::set_leak_warnings(false);
    m.doc() = "The C library of Banyan. Use the package banyan.";
    bind_tensor(m);
    bind_world(m);
    bind_connect(m);
    bind_memory(m);
    bind_plan(m);
    bind_execute(m);
    bind_program(m);
    bind_collective(m);
    bind_layout(m);
    bind_copy(m);
    bind_transform(m);
    bind_reshard(m);
    bind_publish(m);
    bind_checkpoint(m);
    bind_mixed(m);
    bind_forecast(m);
}
