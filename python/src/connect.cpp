/* Joining worlds that were started apart. */
#include "banyan_python.h"

struct Listener : Resource {
    banyan_listener *handle = nullptr;

    bool is_open() const override { return handle != nullptr; }
    banyan_status close() override
    {
        banyan_listener_close(handle);
        handle = nullptr;
        return BANYAN_OK;
    }
    ~Listener() override { banyan_listener_close(handle); }
};

/* Options of rank 0, with the text that they point to. */
struct ConnectOptions {
    std::string name;
    banyan_connect_options options = BANYAN_CONNECT_OPTIONS_INIT;

    ConnectOptions(std::string given, nb::handle connect_timeout, nb::handle timeout)
        : name(std::move(given))
    {
        options.name = name.c_str();
        options.connect_timeout_ns = timeout_of(connect_timeout);
        options.timeout_ns = timeout_of(timeout);
    }
};

static std::shared_ptr<Listener> listen(std::shared_ptr<World> world,
                                        std::optional<std::string> secret,
                                        std::optional<std::string> address, std::string name,
                                        nb::object connect_timeout, nb::object timeout)
{
    ConnectOptions options(name, connect_timeout, timeout);
    auto listener = std::make_shared<Listener>();
    listener->world = world;
    drive(*world, [&] {
        return banyan_world_listen(world->handle, text_or_null(address), text_or_null(secret),
                                   &options.options, &listener->handle);
    });
    return adopt(listener);
}

static std::shared_ptr<World> connect(World &world, std::optional<std::string> address,
                                      std::optional<std::string> secret, std::string name,
                                      nb::object connect_timeout, nb::object timeout)
{
    ConnectOptions options(name, connect_timeout, timeout);
    banyan_world *joined = nullptr;
    drive(world, [&] {
        return banyan_world_connect(world.handle, text_or_null(address), text_or_null(secret),
                                    &options.options, &joined);
    });
    return keep_world(joined);
}

static std::shared_ptr<World> accept(Listener &listener, double wait)
{
    require_open(listener, "the listener");
    if (!(wait >= 0))
        throw nb::value_error("a listener waits for 0 seconds or longer");
    uint64_t wait_ns = wait > 9e9 ? BANYAN_FOREVER_NS : (uint64_t)(wait * 1e9);
    banyan_world *joined = nullptr;
    drive(*listener.world,
          [&] { return banyan_listener_accept(listener.handle, wait_ns, &joined); });
    return joined ? keep_world(joined) : nullptr;
}

void bind_connect(nb::module_ &m)
{
    auto listener = nb::class_<Listener>(
        m, "Listener",
        "A place at which other worlds ask to be joined with a world.\n\n"
        "``World.listen`` makes it. It is closed with its world, if not before; joined worlds "
        "stay.");
    listener
        .def_prop_ro("address",
                     [](Listener &l) {
                         require_open(l, "the listener");
                         return std::string(banyan_listener_address(l.handle));
                     },
                     "The address for ``World.connect``: \"10.0.0.5:4711\" or "
                     "\"[2001:db8::5]:4711\".")
        .def("accept", accept, "wait"_a = 0.0,
             nb::sig("def accept(self, wait: float = 0) -> World | None"),
             "Return the joined world with the world that has asked first. If none has asked, wait "
             "up to ``wait`` seconds (``math.inf``: for ever), then return None; 0 only looks. "
             "Collective; rank 0's ``wait`` counts.\n\n"
             "A connecting world that dies, leaves or cannot open the joined world is dropped, "
             "with a warning in the log. Only a failure of the listener's own world is an error.");
    def_close(listener, "Stop listening. Joined worlds stay. Call it on every rank.");

    auto world = nb::borrow<nb::class_<World>>(m.attr("World"));
    world
        .def("listen", listen, "secret"_a.none(), "address"_a = nb::none(), nb::kw_only(),
             "name"_a = "", "connect_timeout"_a = nb::none(), "timeout"_a = nb::none(),
             nb::sig("def listen(self, secret: str | None, address: str | None = None, *, name: str "
                     "= '', connect_timeout: float | None = None, timeout: float | None = None) -> "
                     "Listener"),
             "Listen for worlds that were started apart and connect to this one. Collective; the "
             "arguments of rank 0 count.\n\n"
             "``secret``: 32 hexadecimal digits, such as ``secrets.token_hex(16)``, the same on "
             "both sides. ``address``: \"host:port\", \"[::1]:port\" or \":port\"; port 0 is a free "
             "one, and None is \":0\". ``name``: purpose of the joined worlds; the other side "
             "must give the same. ``connect_timeout``: seconds in which an accepted world must open "
             "the joined world (None: 30). ``timeout``: of every wait in joined worlds (None: this "
             "world's).")
        .def("connect", connect, "address"_a.none(), "secret"_a.none(), nb::kw_only(),
             "name"_a = "", "connect_timeout"_a = nb::none(), "timeout"_a = nb::none(),
             nb::sig("def connect(self, address: str | None, secret: str | None, *, name: str = '', "
                     "connect_timeout: float | None = None, timeout: float | None = None) -> World"),
             "Return the joined world with the world that listens at ``address``. Collective; the "
             "arguments of rank 0 count.\n\n"
             "While no world listens there, and while it does not accept this one, the call tries "
             "again and waits, for ``connect_timeout`` seconds (None: the world's timeout). Then it "
             "raises Timeout with the reason. A wrong secret raises Refused; another name or "
             "version of Banyan raises Mismatch. ``name``, ``timeout``: as for ``listen``.\n\n"
             "The ranks of the listening world come first in a joined world. It is independent of "
             "both worlds: they go on when it ends.")
        .def_prop_ro("listening_size",
                     [](const World &w) {
                         if (!w.handle)
                             throw nb::value_error("the world is closed");
                         return banyan_world_listening_size(w.handle);
                     },
                     "Number of ranks of the listening world in a joined world: they are the first "
                     "ones. In other worlds, the number of ranks.");
}
