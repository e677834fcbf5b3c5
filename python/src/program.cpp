/* The builder of programs, for banyan.language. Private: arguments are checked there. */
#include "banyan_plan.h"

#include <map>
#include <set>

struct Program {
    banyan_program *handle = nullptr;
    std::map<std::vector<int>, banyan_program_group *> groups;

    Program() = default;
    Program(const Program &) = delete;
    ~Program() { banyan_program_destroy(handle); }
};

/* Channels and semaphores belong to the program. */
template <typename Object> struct Part {
    std::shared_ptr<Program> program;
    Object *handle;
};
using MemoryChannel = Part<banyan_program_memory_channel>;
using PortChannel = Part<banyan_program_port_channel>;
using SwitchChannel = Part<banyan_program_switch_channel>;
using Semaphore = Part<banyan_program_semaphore>;

/* ---- calls ---- */

/* Record the line of the next builder call: the first frame outside of banyan.language. The
 * library keeps the pointer of a file's name, so names live as long as the process. */
static void record_place()
{
    static auto *files = new std::set<std::string>;
    nb::object frame = nb::borrow((PyObject *)PyEval_GetFrame());
    while (frame.is_valid() && !frame.is_none()) {
        nb::object module = nb::dict(frame.attr("f_globals")).attr("get")("__name__", "");
        if (nb::cast<std::string>(nb::str(module)).rfind("banyan.language", 0) != 0) {
            std::string file = nb::cast<std::string>(frame.attr("f_code").attr("co_filename"));
            nb::object line = frame.attr("f_lineno");
            if (!line.is_none())
                banyan_program_here(files->insert(file).first->c_str(), nb::cast<int>(line));
            return;
        }
        frame = frame.attr("f_back");
    }
}

static void check_program(banyan_status status)
{
    if (status == BANYAN_ERR_INVALID)
        raise_named("ProgramError");
    check(status);
}

/* Make one builder call, and raise its error. */
template <typename Call> static auto build(const Program &program, Call &&call)
{
    record_place();
    if constexpr (std::is_void_v<decltype(call())>) {
        call();
        check_program(banyan_program_status(program.handle));
    } else {
        auto made = call();
        check_program(banyan_program_status(program.handle));
        return made;
    }
}

/* ---- arguments ---- */

static std::string value_of(nb::handle member) /* of an Enum, or a string */
{
    return nb::cast<std::string>(nb::isinstance<nb::str>(member) ? nb::borrow(member)
                                                                 : member.attr("value"));
}

static int index_in(const std::string &value, const char *const *names, int count, const char *what)
{
    for (int i = 0; i < count; i++)
        if (value == names[i])
            return i;
    throw nb::value_error((std::string(what) + " \"" + value + "\" is unknown").c_str());
}

static banyan_buffer buffer_of(nb::handle type)
{
    static const char *const names[] = {"i", "o", "s"};
    return (banyan_buffer)index_in(value_of(type), names, 3, "buffer type");
}

static banyan_sync sync_of(nb::handle sync)
{
    static const char *const names[] = {"both", "none", "before", "after"};
    return (banyan_sync)index_in(value_of(sync), names, 4, "synchronization");
}

static banyan_reduce_op op_of(nb::handle op)
{
    return reduce_op_of(nb::str(value_of(op).c_str()));
}

static banyan_chunk chunk_of(nb::handle chunk)
{
    return {nb::cast<int>(chunk.attr("rank")), buffer_of(chunk.attr("buffer")),
            nb::cast<uint64_t>(chunk.attr("index")), nb::cast<uint64_t>(chunk.attr("size"))};
}

static std::vector<banyan_chunk> chunks_of(nb::handle chunks)
{
    std::vector<banyan_chunk> list;
    for (nb::handle chunk : chunks)
        list.push_back(chunk_of(chunk));
    return list;
}

/* Thread blocks that carry out an operation: a number, or the numbers of a group. */
static banyan_program_by by_of(Program &program, nb::handle blocks)
{
    if (nb::isinstance<nb::int_>(blocks))
        return BANYAN_TB(nb::cast<int>(blocks));
    auto list = nb::cast<std::vector<int>>(nb::list(blocks));
    auto &group = program.groups[list];
    if (!group)
        group = build(program, [&] {
            return banyan_program_group_create(program.handle, list.data(), (int)list.size());
        });
    return BANYAN_TB_GROUP(group);
}

/* ---- programs ---- */

static nb::object option(const nb::dict &options, const char *name)
{
    return nb::borrow(options[name]);
}

/* Expected chunks of a custom collective: (rank, chunk, [(rank, chunk), ...]). */
struct Expected {
    std::vector<std::vector<banyan_contribution>> contributions;
    std::vector<banyan_expected_chunk> chunks;

    explicit Expected(nb::handle given)
    {
        for (nb::handle part : given) {
            auto [rank, chunk, from] =
                nb::cast<std::tuple<int, uint64_t, nb::object>>(nb::tuple(part));
            std::vector<banyan_contribution> list;
            for (nb::handle one : from) {
                auto [source, index] = nb::cast<std::pair<int, uint64_t>>(one);
                list.push_back({source, index});
            }
            contributions.push_back(std::move(list));
            chunks.push_back({rank, chunk, nullptr, contributions.back().size()});
        }
        for (size_t i = 0; i < chunks.size(); i++)
            chunks[i].contributions = contributions[i].data();
    }
};

static std::shared_ptr<Program> create(const std::string &name, int ranks, nb::dict given,
                                       nb::dict collective_given)
{
    const nb::dict &c = collective_given;
    std::string collective_name = nb::cast<std::string>(option(c, "name"));
    Expected expected(option(c, "expected"));
    banyan_collective collective = {};
    collective.kind = (banyan_collective_kind)BANYAN_CUSTOM;
    if (!nb::cast<bool>(option(c, "custom")))
        collective.kind = collective_of(collective_name);
    collective.chunk_factor = nb::cast<int>(option(c, "chunk_factor"));
    collective.in_place = nb::cast<bool>(option(c, "in_place"));
    collective.root = nb::cast<int>(option(c, "root"));
    collective.shift = nb::cast<int>(option(c, "shift"));
    collective.name = collective_name.c_str();
    collective.input_chunks = nb::cast<uint64_t>(option(c, "input_chunks"));
    collective.output_chunks = nb::cast<uint64_t>(option(c, "output_chunks"));
    collective.block_chunks = nb::cast<uint64_t>(option(c, "block_chunks"));
    collective.expected = expected.chunks.empty() ? nullptr : expected.chunks.data();
    collective.expected_count = expected.chunks.size();
    collective.expected_op = op_of(option(c, "expected_op"));

    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.instances = nb::cast<int>(option(given, "instances"));
    options.protocol =
        nb::cast<std::string>(option(given, "protocol")) == "LL" ? BANYAN_LL : BANYAN_SIMPLE;
    options.fuse = nb::cast<bool>(option(given, "instr_fusion"));
    options.fuse_more = nb::cast<bool>(option(given, "fuse_more"));
    options.auto_sync = nb::cast<bool>(option(given, "auto_sync"));
    options.replication = value_of(option(given, "replication_policy")) == "none"
                              ? BANYAN_NOT_REPLICATED
                              : BANYAN_INTERLEAVED;
    options.reuse_resources = nb::cast<bool>(option(given, "reuse_resources"));
    options.reused_scratch_bytes = nb::cast<uint64_t>(option(given, "reused_scratch_bytes"));
    options.threads_per_block = nb::cast<int>(option(given, "num_threads_per_block"));
    options.double_scratch = nb::cast<bool>(option(given, "use_double_scratch_buffer"));
    options.buffer_alignment = nb::cast<uint64_t>(option(given, "buffer_alignment"));
    options.min_message_bytes = nb::cast<uint64_t>(option(given, "min_message_size"));
    options.max_message_bytes = nb::cast<uint64_t>(option(given, "max_message_size"));
    auto program = std::make_shared<Program>();
    check_program(
        banyan_program_create(name.c_str(), &collective, ranks, &options, &program->handle));
    return program;
}

static std::shared_ptr<Plan> compile(Program &program)
{
    banyan_plan *plan = nullptr;
    check_program(banyan_program_compile(program.handle, &plan));
    return std::make_shared<Plan>(plan);
}

static void def_local(nb::class_<Program> &cl)
{
    cl.def("copy",
           [](Program &p, int rank, nb::handle to, nb::handle from, nb::handle by) {
               banyan_program_by blocks = by_of(p, by);
               banyan_chunk destination = chunk_of(to), source = chunk_of(from);
               build(p, [&] { banyan_program_copy(p.handle, rank, destination, source, blocks); });
           })
        .def("copy_packets",
             [](Program &p, int rank, nb::handle to, nb::handle from, nb::handle by) {
                 banyan_program_by blocks = by_of(p, by);
                 banyan_chunk destination = chunk_of(to), source = chunk_of(from);
                 build(p, [&] {
                     banyan_program_copy_packets(p.handle, rank, destination, source, blocks);
                 });
             })
        .def("unpack_packets",
             [](Program &p, int rank, nb::handle to, nb::handle from, nb::handle by) {
                 banyan_program_by blocks = by_of(p, by);
                 banyan_chunk destination = chunk_of(to), source = chunk_of(from);
                 build(p, [&] {
                     banyan_program_unpack_packets(p.handle, rank, destination, source, blocks);
                 });
             })
        .def("reduce",
             [](Program &p, int rank, nb::handle from, nb::handle others, nb::handle to,
                nb::handle op, bool packets, nb::handle by) {
                 banyan_program_by blocks = by_of(p, by);
                 banyan_chunk source = chunk_of(from), destination = chunk_of(to);
                 auto list = chunks_of(others);
                 auto *call = packets ? banyan_program_reduce_packets : banyan_program_reduce;
                 banyan_reduce_op reduction = op_of(op);
                 build(p, [&] {
                     call(p.handle, rank, source, list.data(), (int)list.size(), destination,
                          reduction, blocks);
                 });
             })
        .def("barrier", [](Program &p, int rank, std::vector<int> blocks) {
            build(p, [&] {
                banyan_program_barrier(p.handle, rank, blocks.data(), (int)blocks.size());
            });
        });
}

static void bind_memory_channel(nb::module_ &m)
{
    nb::class_<MemoryChannel>(m, "_MemoryChannel")
        .def("signal",
             [](MemoryChannel &c, int block, nb::handle sync, bool relaxed) {
                 auto *call =
                     relaxed ? banyan_program_memory_signal_relaxed : banyan_program_memory_signal;
                 banyan_sync around = sync_of(sync);
                 build(*c.program, [&] { call(c.handle, block, around); });
             })
        .def("wait",
             [](MemoryChannel &c, int block, nb::handle sync, bool relaxed) {
                 auto *call =
                     relaxed ? banyan_program_memory_wait_relaxed : banyan_program_memory_wait;
                 banyan_sync around = sync_of(sync);
                 build(*c.program, [&] { call(c.handle, block, around); });
             })
        .def("move",
             [](MemoryChannel &c, const std::string &operation, nb::handle to, nb::handle from,
                nb::handle by) {
                 auto *call = operation == "get"           ? banyan_program_memory_get
                              : operation == "put"         ? banyan_program_memory_put
                              : operation == "put_packets" ? banyan_program_memory_put_packets
                                                           : banyan_program_memory_read_put_packets;
                 banyan_program_by blocks = by_of(*c.program, by);
                 banyan_chunk destination = chunk_of(to), source = chunk_of(from);
                 build(*c.program, [&] { call(c.handle, destination, source, blocks); });
             })
        .def("reduce", [](MemoryChannel &c, nb::handle local, nb::handle remote, nb::handle to,
                          nb::handle op, nb::handle by) {
            banyan_program_by blocks = by_of(*c.program, by);
            banyan_chunk source = chunk_of(local), destination = chunk_of(to);
            auto list = chunks_of(remote);
            banyan_reduce_op reduction = op_of(op);
            build(*c.program, [&] {
                banyan_program_memory_reduce(c.handle, source, list.data(), (int)list.size(),
                                             destination, reduction, blocks);
            });
        });
}

static void bind_port_channel(nb::module_ &m)
{
    nb::class_<PortChannel>(m, "_PortChannel")
        .def("sync",
             [](PortChannel &c, const std::string &operation, int block, nb::handle sync) {
                 auto *call = operation == "signal" ? banyan_program_port_signal
                              : operation == "wait" ? banyan_program_port_wait
                                                    : banyan_program_port_flush;
                 banyan_sync around = sync_of(sync);
                 build(*c.program, [&] { call(c.handle, block, around); });
             })
        .def("put",
             [](PortChannel &c, const std::string &operation, nb::handle to, nb::handle from,
                int block) {
                 auto *call = operation == "put"               ? banyan_program_port_put
                              : operation == "put_with_signal" ? banyan_program_port_put_with_signal
                              : operation == "put_packets"
                                  ? banyan_program_port_put_packets
                                  : banyan_program_port_put_with_signal_and_flush;
                 banyan_chunk remote = chunk_of(to), local = chunk_of(from);
                 build(*c.program, [&] { call(c.handle, remote, local, block); });
             })
        .def("read_put_packets", [](PortChannel &c, nb::handle to, nb::handle from, nb::handle by) {
            banyan_program_by blocks = by_of(*c.program, by);
            banyan_chunk remote = chunk_of(to), local = chunk_of(from);
            build(*c.program,
                  [&] { banyan_program_port_read_put_packets(c.handle, remote, local, blocks); });
        });
}

static void bind_switch_channel(nb::module_ &m)
{
    nb::class_<SwitchChannel>(m, "_SwitchChannel")
        .def("reduce",
             [](SwitchChannel &c, int rank, uint64_t index, uint64_t size, nb::handle to,
                nb::handle op, int block) {
                 banyan_chunk destination = chunk_of(to);
                 banyan_reduce_op reduction = op_of(op);
                 build(*c.program, [&] {
                     banyan_program_switch_reduce(c.handle, rank, index, size, destination,
                                                  reduction, block);
                 });
             })
        .def("broadcast", [](SwitchChannel &c, int rank, nb::handle from, uint64_t index,
                             uint64_t size, int block, bool packets) {
            auto *call =
                packets ? banyan_program_switch_broadcast_packets : banyan_program_switch_broadcast;
            banyan_chunk source = chunk_of(from);
            build(*c.program, [&] { call(c.handle, rank, source, index, size, block); });
        });
}

void bind_program(nb::module_ &m)
{
    bind_memory_channel(m);
    bind_port_channel(m);
    bind_switch_channel(m);
    nb::class_<Semaphore>(m, "_Semaphore")
        .def("acquire",
             [](Semaphore &s, int block, nb::handle sync) {
                 banyan_sync around = sync_of(sync);
                 build(*s.program,
                       [&] { banyan_program_semaphore_acquire(s.handle, block, around); });
             })
        .def("release", [](Semaphore &s, int block, nb::handle sync) {
            banyan_sync around = sync_of(sync);
            build(*s.program, [&] { banyan_program_semaphore_release(s.handle, block, around); });
        });
    auto program = nb::class_<Program>(m, "_Program", "The builder of program.h.");
    program
        .def_static("create", create, "name"_a, "ranks"_a, "options"_a, "collective"_a,
                    nb::sig("def create(name: str, ranks: int, options: dict[str, typing.Any], "
                            "collective: dict[str, typing.Any]) -> _Program"))
        .def("compile", compile)
        .def("tag",
             [](Program &p, const std::string &key, const std::string &value) {
                 build(p, [&] { banyan_program_tag(p.handle, key.c_str(), value.c_str()); });
             })
        .def("scratch",
             [](Program &p, int rank, uint64_t chunks) {
                 return build(p, [&] { return banyan_program_scratch(p.handle, rank, chunks); })
                     .index;
             })
        .def("memory_channel",
             [](std::shared_ptr<Program> p, int destination, int source) {
                 return MemoryChannel{p, build(*p, [&] {
                                          return banyan_program_memory_channel_create(
                                              p->handle, destination, source);
                                      })};
             })
        .def("port_channel",
             [](std::shared_ptr<Program> p, int destination, int source) {
                 return PortChannel{p, build(*p, [&] {
                                        return banyan_program_port_channel_create(
                                            p->handle, destination, source);
                                    })};
             })
        .def("switch_channel",
             [](std::shared_ptr<Program> p, std::vector<int> ranks, nb::handle buffer) {
                 banyan_buffer of = buffer_of(buffer);
                 return SwitchChannel{p, build(*p, [&] {
                                          return banyan_program_switch_channel_create(
                                              p->handle, ranks.data(), (int)ranks.size(), of);
                                      })};
             })
        .def("semaphore",
             [](std::shared_ptr<Program> p, int rank, uint64_t initial) {
                 return Semaphore{p, build(*p, [&] {
                                      return banyan_program_semaphore_create(p->handle, rank,
                                                                             initial);
                                  })};
             })
        .def("loop_begin",
             [](Program &p, uint64_t unit_bytes, uint64_t chunks) {
                 build(p, [&] { banyan_program_loop_begin(p.handle, unit_bytes, chunks); });
             })
        .def("loop_end", [](Program &p) { build(p, [&] { banyan_program_loop_end(p.handle); }); });
    def_local(program);
}
