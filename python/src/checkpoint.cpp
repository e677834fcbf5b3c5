/* Model files in the safetensors format. */
#include "banyan_reshard.h"

#include <banyan/checkpoint.h>

/* Options with a function of Python for the progress. */
struct CheckpointOptions {
    banyan_checkpoint_options options = BANYAN_CHECKPOINT_OPTIONS_INIT;
    Progress progress;

    CheckpointOptions(nb::object progress, const char *what,
                      nb::object small_files_from = nb::none())
        : progress(progress, what, true)
    {
        if (!small_files_from.is_none()) {
            small_files = path_of(small_files_from);
            options.small_files_from = small_files.c_str();
        }
        if (!this->progress.is_wanted())
            return;
        options.progress_context = this;
        options.progress = [](void *context, uint64_t done, uint64_t total) {
            ((CheckpointOptions *)context)->progress.report(done, total);
        };
    }

  private:
    std::string small_files;
};

static std::shared_ptr<Checkpoint> open_checkpoint(nb::object path)
{
    auto checkpoint = std::make_shared<Checkpoint>();
    checkpoint->path = path_of(path);
    work([&] { return banyan_checkpoint_open(checkpoint->path.c_str(), &checkpoint->handle); });
    return checkpoint;
}

static nb::object get_data(std::shared_ptr<Checkpoint> c, const char *name)
{
    require_open(*c, "the checkpoint");
    size_t i;
    check(banyan_checkpoint_find(c->handle, name, &i));
    const DLTensor *t = banyan_checkpoint_data(c->handle, i);
    if (!t)
        throw nb::value_error("the tensors of a folder that ranks saved lie in parts: load them");
    Array array{c, (char *)t->data + t->byte_offset, t->device, t->dtype, {t->shape, t->shape + t->ndim},
                {}, true};
    return nb::cast(array);
}

static std::vector<LocalTensor> tensors_of(const Checkpoint &c)
{
    require_open(c, "the checkpoint");
    std::vector<LocalTensor> tensors;
    for (size_t i = 0; i < banyan_checkpoint_tensor_count(c.handle); i++)
        tensors.emplace_back(*banyan_checkpoint_tensor(c.handle, i));
    return tensors;
}

static void load(std::shared_ptr<Checkpoint> c, const Layout &layout,
                 std::shared_ptr<Tensors> tensors, std::shared_ptr<Transform> transform,
                 int threads, nb::object progress)
{
    require_open(*c, "the checkpoint");
    require_open(*tensors, "the set of tensors");
    auto checkpoint_use = in_use(c), tensors_use = in_use(tensors);
    layout.check();
    if (!tensors->read_only.empty())
        throw nb::value_error(
            ("tensors: the tensor \"" + tensors->read_only + "\" is read-only").c_str());
    CheckpointOptions options(progress, "reading");
    options.options.transform = transform ? transform->handle : nullptr;
    options.options.thread_count = threads;
    work([&] {
        return banyan_checkpoint_load(c->handle, layout.handle, tensors->handle, &options.options);
    });
    options.progress.end();
}

static void write_file(nb::object path, nb::object tensors, nb::object progress)
{
    std::string file = path_of(path);
    CheckpointOptions options(progress, "writing");
    std::vector<std::string> names;
    std::deque<Tensor> kept;
    std::vector<DLTensor> views;
    for (nb::handle name : nb::iter(tensors)) {
        names.push_back(text_of(name, "the name of a tensor"));
        nb::object tensor = tensors[name];
        views.push_back(kept.emplace_back(tensor, names.back().c_str(), false, true).t);
    }
    std::vector<const char *> pointers;
    for (const std::string &name : names)
        pointers.push_back(name.c_str());
    work([&] {
        return banyan_checkpoint_write(file.c_str(), pointers.data(), views.data(), views.size(),
                                       &options.options);
    });
    options.progress.end();
}

static void save(nb::object folder, const Layout *layout, std::shared_ptr<Tensors> tensors,
                 std::shared_ptr<World> world, nb::object small_files_from, nb::object progress,
                 nb::object timeout)
{
    std::string path = path_of(folder);
    CheckpointOptions options(progress, "writing", small_files_from);
    options.options.timeout_ns = timeout_of(timeout);
    if (tensors)
        require_open(*tensors, "the set of tensors");
    auto use = in_use(tensors);
    drive(*world, [&] {
        return banyan_checkpoint_save(path.c_str(), handle_of(layout),
                                      tensors ? tensors->handle : nullptr, world->handle,
                                      &options.options);
    });
    options.progress.end();
}

static void join(nb::object saved, nb::object folder, uint64_t max_shard_bytes,
                 nb::object small_files_from, nb::object progress)
{
    std::string from = path_of(saved), to = path_of(folder);
    CheckpointOptions options(progress, "joining", small_files_from);
    options.options.max_shard_bytes = max_shard_bytes;
    work([&] { return banyan_checkpoint_join(from.c_str(), to.c_str(), &options.options); });
    options.progress.end();
}

void bind_checkpoint(nb::module_ &m)
{
    auto checkpoint = nb::class_<Checkpoint>(
        m, "Checkpoint",
        "The tensors of a model's files in the safetensors format, mapped into memory, read-only.\n\n"
        "``progress``: True draws a bar on a terminal and in notebooks, if the work takes long; a "
        "function is called with the bytes that are done, and their total.");
    def_new(checkpoint, open_checkpoint, "path: banyan.PathLike",
            "Open a Hugging Face folder, a safetensors file, or a folder that ranks saved.",
            "path"_a);
    checkpoint
        .def_prop_ro("tensors", tensors_of, "Names, types and shapes, as a new list.")
        .def_prop_ro("path", [](const Checkpoint &c) { return nb::steal(PyUnicode_DecodeFSDefault(c.path.c_str())); },
                     nb::sig("def path(self) -> str"), "Path of the folder or file.")
        .def_prop_ro("rank_count",
                     [](const Checkpoint &c) {
                         require_open(c, "the checkpoint");
                         return banyan_checkpoint_rank_count(c.handle);
                     },
                     "Number of ranks that saved the folder; 0: it is not a saved one.")
        .def("__getitem__", get_data, "name"_a, nb::sig("def __getitem__(self, name: str) -> Array"),
             "Return a tensor, mapped and read-only.")
        .def("__len__",
             [](const Checkpoint &c) {
                 require_open(c, "the checkpoint");
                 return banyan_checkpoint_tensor_count(c.handle);
             })
        .def("keys",
             [](const Checkpoint &c) {
                 std::vector<std::string> names;
                 for (LocalTensor &tensor : tensors_of(c))
                     names.push_back(std::move(tensor.name));
                 return names;
             },
             "Return the names, as a list.")
        .def("layout",
             [](const Checkpoint &c, int rank) {
                 require_open(c, "the checkpoint");
                 auto layout = std::make_shared<Layout>();
                 banyan_checkpoint_add_layout(c.handle, rank, layout->handle);
                 layout->check();
                 return layout;
             },
             "rank"_a, "Return the layout of what a rank of a saved folder saved.")
        .def_prop_ro("bytes_read",
                     [](const Checkpoint &c) {
                         require_open(c, "the checkpoint");
                         return banyan_checkpoint_bytes_read(c.handle);
                     },
                     "Bytes of tensors that loads have read from the files.")
        .def("load", load, "layout"_a, "tensors"_a, nb::kw_only(), "transform"_a = nb::none(),
             "threads"_a = 0, "progress"_a.none() = true,
             nb::sig("def load(self, layout: Layout, tensors: Tensors, *, transform: Transform | "
                     "None = None, threads: int = 0, " PROGRESS ") -> None"),
             "Fill every piece of a layout's tensors, and their padding. Only what the layout has "
             "is read.\n\n"
             "``transform``: allows types to differ: a Cast, or on the host any other. "
             "``threads``: those that read; 0: "
             "one for each processor, at most 8. Tensors on a GPU must not be in use. The set is "
             "torn until the load has ended well. Local.")
        .def_static("write", write_file, "path"_a, "tensors"_a, nb::kw_only(),
                    "progress"_a.none() = true,
                    nb::sig("def write(path: banyan.PathLike, tensors: "
                            "collections.abc.Mapping[str, banyan.TensorLike], *, " PROGRESS ") -> None"),
                    "Write one safetensors file, in one step. Local.")
        .def_static("save", save, "folder"_a, "layout"_a.none(), "tensors"_a.none(), "world"_a,
                    nb::kw_only(), "small_files_from"_a = nb::none(), "progress"_a.none() = true,
                    "timeout"_a = nb::none(),
                    nb::sig("def save(folder: banyan.PathLike, layout: Layout | None, tensors: "
                            "Tensors | None, world: World, *, small_files_from: banyan.PathLike | "
                            "None = None, " PROGRESS ", timeout: float | None = None) -> None"),
                    "Save the tensors of every rank in a new folder, which appears when it is "
                    "complete. None on a rank that holds nothing. ``small_files_from``: a folder "
                    "whose config.json, tokenizer and the like are copied. Collective.")
        .def_static("join", join, "saved"_a, "folder"_a, nb::kw_only(), "max_shard_bytes"_a = 0,
                    "small_files_from"_a = nb::none(), "progress"_a.none() = true,
                    nb::sig("def join(saved: banyan.PathLike, folder: banyan.PathLike, *, "
                            "max_shard_bytes: int = 0, small_files_from: banyan.PathLike | None = "
                            "None, " PROGRESS ") -> None"),
                    "Join a saved folder into a Hugging Face folder of global tensors. "
                    "``max_shard_bytes``: data in one file; 0: 5 GB. Local.");
    def_close(checkpoint, "Unmap the files.");
}
