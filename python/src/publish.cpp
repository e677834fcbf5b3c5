/* Publishing the versions of a model to engines. */
#include "banyan_reshard.h"

struct Publication : Resource {
    banyan_publication *handle = nullptr;
    std::shared_ptr<Layout> layout; /* null: this rank holds nothing */
    std::shared_ptr<Transform> transform;

    bool is_open() const override { return handle != nullptr; }
    bool is_collective() const override { return true; }
    banyan_status close() override
    {
        banyan_publication_close(handle);
        handle = nullptr;
        return BANYAN_OK;
    }
    ~Publication() override { close(); }
};

struct Subscription : Resource {
    banyan_subscription *handle = nullptr;
    std::shared_ptr<Tensors> tensors;
    std::shared_ptr<void> tensors_in_use;

    bool is_open() const override { return handle != nullptr; }
    bool is_collective() const override { return true; }
    banyan_status close() override
    {
        banyan_subscription_close(handle);
        handle = nullptr;
        return BANYAN_OK;
    }
    ~Subscription() override { close(); }
};

/* The stream of the options: the default stream if none is given. */
static void *stream_given(const nb::object &stream)
{
    return stream.is_none() ? nullptr : stream_of(stream, nb::none(), BANYAN_CUDA(0));
}

/* ---- publication ---- */

static banyan_publication_compression compression_of(const std::string &name)
{
    if (name == "automatic")
        return BANYAN_COMPRESSION_AUTOMATIC;
    if (name == "off")
        return BANYAN_COMPRESSION_OFF;
    if (name == "always")
        return BANYAN_COMPRESSION_ALWAYS;
    throw nb::value_error("compression is \"automatic\", \"off\" or \"always\"");
}

static std::shared_ptr<Publication> make_publication(std::shared_ptr<Layout> layout,
                                                     std::shared_ptr<World> world,
                                                     std::optional<std::string> secret,
                                                     std::optional<std::string> address,
                                                     std::string name, uint32_t kept_versions,
                                                     nb::object patience, nb::object timeout,
                                                     bool keep_on_host, nb::object stream,
                                                     std::shared_ptr<Layout> published,
                                                     std::shared_ptr<Transform> transform,
                                                     std::string scales_suffix,
                                                     uint64_t max_converted_bytes,
                                                     const std::string &compression)
{
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    options.name = name.c_str();
    options.kept_versions = kept_versions;
    options.patience_ns = timeout_of(patience);
    options.timeout_ns = timeout_of(timeout);
    options.keep_on_host = keep_on_host;
    options.stream = stream_given(stream);
    options.published = handle_of(published.get());
    options.transform = transform ? transform->handle : nullptr;
    options.scales_suffix = scales_suffix.c_str();
    options.max_converted_bytes = max_converted_bytes;
    options.compression = compression_of(compression);
    auto made = std::make_shared<Publication>();
    made->world = world;
    made->layout = layout;
    made->transform = transform;
    drive(*world, [&] {
        return banyan_publication_open(world->handle, handle_of(layout.get()),
                                       text_or_null(address), text_or_null(secret), &options,
                                       &made->handle);
    });
    return adopt(made);
}

/* The set of tensors of a call: a set, or what a set can be made of. */
static std::shared_ptr<Tensors> set_of(const std::shared_ptr<Layout> &layout, nb::object tensors)
{
    if (tensors.is_none())
        return nullptr;
    if (nb::isinstance<Tensors>(tensors))
        return nb::cast<std::shared_ptr<Tensors>>(tensors);
    if (!layout)
        throw nb::value_error("tensors were given, and this rank has no layout");
    nb::object made = nb::module_::import_("banyan._core").attr("Tensors")(layout, tensors);
    return nb::cast<std::shared_ptr<Tensors>>(made);
}

static banyan_publish_report publish(Publication &publication, nb::object tensors, uint64_t version)
{
    require_open(publication, "the publication");
    std::shared_ptr<Tensors> set = set_of(publication.layout, tensors);
    banyan_publish_report report;
    if (set)
        require_open(*set, "the set of tensors");
    drive(*publication.world, [&] {
        return banyan_publication_publish(publication.handle, set ? set->handle : nullptr, version,
                                          &report);
    });
    return report;
}

static banyan_publication_status status_of(Publication &publication)
{
    require_open(publication, "the publication");
    return banyan_publication_get_status(publication.handle);
}

/* ---- subscription ---- */

static std::shared_ptr<Subscription>
make_subscription(std::shared_ptr<Layout> layout, nb::object tensors, std::shared_ptr<World> world,
                  std::optional<std::string> address, std::optional<std::string> secret,
                  std::string name, uint64_t bytes_per_s, uint64_t max_staging_bytes, bool verify,
                  bool keep_previous, nb::object timeout, nb::object stream, bool shadow)
{
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.name = name.c_str();
    options.bytes_per_s = bytes_per_s;
    options.max_staging_bytes = max_staging_bytes;
    options.verify = verify;
    options.keep_previous = keep_previous;
    options.shadow = shadow;
    options.timeout_ns = timeout_of(timeout);
    options.stream = stream_given(stream);
    auto made = std::make_shared<Subscription>();
    made->world = world;
    made->tensors = set_of(layout, tensors);
    if (made->tensors) {
        require_open(*made->tensors, "the set of tensors");
        if (!made->tensors->read_only.empty())
            throw nb::value_error(
                ("the tensor \"" + made->tensors->read_only + "\" is read-only").c_str());
        made->tensors_in_use = in_use(made->tensors);
    }
    drive(*world, [&] {
        return banyan_subscription_open(
            world->handle, handle_of(layout.get()), made->tensors ? made->tensors->handle : nullptr,
            text_or_null(address), text_or_null(secret), &options, &made->handle);
    });
    return adopt(made);
}

/* Ctrl-C ends the wait. */
static uint64_t wait_for_version(Subscription &subscription, uint64_t above, nb::object timeout)
{
    require_open(subscription, "the subscription");
    uint64_t timeout_ns = timeout.is_none() ? BANYAN_FOREVER_NS : timeout_of(timeout), version = 0;
    banyan_status status;
    {
        Wait waiting;
        status = banyan_subscription_wait(subscription.handle, above, timeout_ns, &version);
    }
    check(status);
    return version;
}

template <banyan_status (*call)(banyan_subscription *, uint64_t *)>
static uint64_t change_version(Subscription &subscription)
{
    uint64_t version = 0;
    require_open(subscription, "the subscription");
    drive(*subscription.world, [&] { return call(subscription.handle, &version); });
    return version;
}

static banyan_subscription_status status_of(Subscription &subscription)
{
    require_open(subscription, "the subscription");
    return banyan_subscription_get_status(subscription.handle);
}

/* ---- binding ---- */

static void bind_publication(nb::module_ &m)
{
    nb::class_<banyan_publish_report>(m, "PublishReport", "What a publish found at this rank.")
        .def_ro("elems", &banyan_publish_report::elems, "Elements of the rank's tensors.")
        .def_ro("changed", &banyan_publish_report::changed,
                "Elements that changed; all of them in the first version.")
        .def_prop_ro("waited",
                     [](const banyan_publish_report &r) { return (double)r.waited_ns / 1e9; },
                     "Seconds of waiting for engines that fetched the version before.")
        .def_prop_ro("compared",
                     [](const banyan_publish_report &r) { return (double)r.compared_ns / 1e9; },
                     "Seconds of finding what changed.")
        .def_prop_ro("converted",
                     [](const banyan_publish_report &r) { return (double)r.converted_ns / 1e9; },
                     "Seconds of making the published format; 0 without ``published``.");
    auto publication = nb::class_<Publication>(
        m, "Publication",
        "The versions of a layout's tensors, which engines fetch while they serve.\n\n"
        "It keeps a copy of the tensors, from which engines fetch what changed since the version "
        "that they have.");
    def_new(publication, make_publication,
            "layout: Layout | None, world: World, secret: str | None, address: str | None = None, "
            "*, name: str = '', kept_versions: int = 0, patience: float | None = None, timeout: "
            "float | None = None, keep_on_host: bool = False, stream: banyan.StreamLike = None, "
            "published: Layout | None = None, transform: Transform | None = None, scales_suffix: "
            "str = '_scale', max_converted_bytes: int = 0, compression: str = 'automatic'",
            "Open a publication, and listen for engines. Collective; ``secret`` and ``address`` of "
            "rank 0 count, and are those of ``World.listen``. ``layout``: None for a rank that "
            "holds nothing.\n\n"
            "``kept_versions``: versions before the current one from which an engine can get the "
            "changes; 0: 4. ``patience``: seconds for which a publish waits for engines that "
            "fetch (None: 5); they pause at the end of a wave, or are dropped and may come back. ``timeout``: of every "
            "wait in the worlds joined with engines (None: this world's).\n\n"
            "For tensors on a GPU: ``keep_on_host`` keeps the copy in pinned host memory, and "
            "tensors are compared after the work that ``stream`` has (None: the default stream).\n\n"
            "``published``: publish this layout, of which engines' layouts then take pieces. Each "
            "publish first moves the tensors to it, with ``transform``, and then compares: "
            "elements count as changed if their published bits differ. Scales of an ``Mxfp8``, "
            "which only this publication can use, are tensors of that layout: those of \"w\" are "
            "\"w\" + ``scales_suffix``. ``max_converted_bytes``: convert about so many bytes at "
            "once (0: 256 MiB).\n\n"
            "``compression``: \"automatic\" compresses what travels to an engine if measurements tell "
            "that it has a version earlier; \"off\"; \"always\".",
            "layout"_a.none(), "world"_a, "secret"_a.none(), "address"_a = nb::none(), nb::kw_only(),
            "name"_a = "", "kept_versions"_a = 0, "patience"_a = nb::none(),
            "timeout"_a = nb::none(), "keep_on_host"_a = false, "stream"_a = nb::none(),
            "published"_a = nb::none(), "transform"_a = nb::none(), "scales_suffix"_a = "_scale",
            "max_converted_bytes"_a = 0, "compression"_a = "automatic");
    publication
        .def_prop_ro("address",
                     [](Publication &p) {
                         require_open(p, "the publication");
                         return std::string(banyan_publication_address(p.handle));
                     },
                     "The address for subscriptions, such as \"10.0.0.5:4711\".")
        .def("publish", publish, "tensors"_a.none(), "version"_a,
             nb::sig("def publish(self, tensors: Tensors | collections.abc.Mapping[str, "
                     "banyan.TensorLike] | collections.abc.Sequence[banyan.TensorLike] | None, "
                     "version: int) -> PublishReport"),
             "Publish the contents of the tensors as a version, larger than the one before. They "
             "may be overwritten afterwards. Collective.")
        .def_prop_ro("version", [](Publication &p) { return status_of(p).version; },
                     "The current version; 0: none yet.")
        .def_prop_ro("subscribers", [](Publication &p) { return status_of(p).subscribers; },
                     "Number of engines that are connected.")
        .def_prop_ro("dropped", [](Publication &p) { return status_of(p).dropped; },
                     "Number of connections that ended by an error so far.")
        .def_prop_ro("sent_bytes", [](Publication &p) { return status_of(p).sent_bytes; },
                     "Bytes that this rank has sent so far.");
    def_close(publication,
              "End the publication. Engines keep what they have, and look for another one at the "
              "address. Collective.");
}

static void bind_subscription(nb::module_ &m)
{
    auto subscription = nb::class_<Subscription>(
        m, "Subscription",
        "An engine's tensors, which follow the versions of a publication.\n\n"
        "A thread fetches every new version in the background. ``commit`` makes it current.");
    def_new(subscription, make_subscription,
            "layout: Layout | None, tensors: Tensors | collections.abc.Mapping[str, "
            "banyan.TensorLike] | collections.abc.Sequence[banyan.TensorLike] | None, world: "
            "World, address: str | None, secret: str | None, *, name: str = '', bytes_per_s: int "
            "= 0, max_staging_bytes: int = 0, verify: bool = False, keep_previous: bool = False, "
            "timeout: float | None = None, stream: banyan.StreamLike = None, shadow: bool = False",
            "Subscribe to the publication at ``address``, and return at once. Collective; "
            "``address`` and ``secret`` of rank 0 count.\n\n"
            "``bytes_per_s``: limit of what each trainer rank sends to this engine; 0: none. "
            "``max_staging_bytes``: limit of what a rank keeps for the next commit; 0: none. "
            "``verify``: check every box that changes, before it is committed. ``keep_previous``: "
            "allow ``rollback``. ``timeout``: of every wait in the worlds joined with the trainer. "
            "``stream``: for tensors on a GPU, where commits exchange elements (None: the default "
            "stream); they return when that has ended. ``shadow``: for tensors of ``Tensors.alloc`` "
            "with ``swappable``, commit by exchanging their memory with a second copy, which is "
            "brought up to date in the background; nothing may use them meanwhile, in any stream.",
            "layout"_a.none(), "tensors"_a.none(), "world"_a, "address"_a.none(),
            "secret"_a.none(), nb::kw_only(), "name"_a = "", "bytes_per_s"_a = 0,
            "max_staging_bytes"_a = 0, "verify"_a = false, "keep_previous"_a = false,
            "timeout"_a = nb::none(), "stream"_a = nb::none(), "shadow"_a = false);
    subscription
        .def("wait", wait_for_version, "above"_a = 0, "timeout"_a = nb::none(),
             nb::sig("def wait(self, above: int = 0, timeout: float | None = None) -> int"),
             "Wait until this rank has staged a version above ``above``, and return it. Raises "
             "Timeout after ``timeout`` seconds (None: never), with the subscription's last error. "
             "Local.")
        .def("commit", change_version<banyan_subscription_commit>,
             "Make the newest version that all ranks have staged current, and return the current "
             "version (0: none). Nothing may use the tensors meanwhile. Collective.")
        .def("rollback", change_version<banyan_subscription_rollback>,
             "Return to the version before the last commit, and return its number. Needs "
             "``keep_previous``. Collective.")
        .def("check",
             [](Subscription &s) {
                 require_open(s, "the subscription");
                 check(banyan_subscription_check(s.handle));
             },
             "Raise the last error of the subscription's thread, which tries again at intervals of 1 "
             "to 16 seconds.")
        .def_prop_ro("version", [](Subscription &s) { return status_of(s).version; },
                     "The current version; 0: none.")
        .def_prop_ro("staged", [](Subscription &s) { return status_of(s).staged; },
                     "The newest version that this rank has staged or committed; 0: none.")
        .def_prop_ro("is_connected", [](Subscription &s) { return status_of(s).connected; },
                     "True while a publication is connected.")
        .def_prop_ro("staged_bytes", [](Subscription &s) { return status_of(s).staged_bytes; },
                     "Bytes that are kept for the next commit.")
        .def_prop_ro("received_bytes", [](Subscription &s) { return status_of(s).received_bytes; },
                     "Bytes that this rank has received so far.")
        .def_prop_ro("whole_fetches", [](Subscription &s) { return status_of(s).whole_fetches; },
                     "Number of versions that came whole.")
        .def_prop_ro("delta_fetches", [](Subscription &s) { return status_of(s).delta_fetches; },
                     "Number of versions that came as changes.")
        .def_prop_ro("paused_fetches", [](Subscription &s) { return status_of(s).paused_fetches; },
                     "Number of both that came by several fetches, with pauses.");
    def_close(subscription,
              "End the subscription. The tensors keep the version that they have. Collective.");
}

void bind_publish(nb::module_ &m)
{
    bind_publication(m);
    bind_subscription(m);
}
