/* Layouts: boxes, pieces, meshes and placements, Megatron-Core's metadata, models and rules, files. */
#include "banyan_reshard.h"

#include <unordered_map>

#include <banyan/rules.h>

/* ---- arguments ---- */

Items::Items(nb::handle iterable)
{
    held = nb::borrow(iterable);
    if (!is_many(held)) {
        held = nb::steal(PySequence_Tuple(iterable.ptr()));
        if (!held.is_valid())
            throw nb::python_error();
    }
    is_tuple = PyTuple_Check(held.ptr());
    count = (size_t)(is_tuple ? PyTuple_Size(held.ptr()) : PyList_Size(held.ptr()));
}

nb::handle Items::operator[](size_t i) const
{
    PyObject *item = is_tuple ? PyTuple_GetItem(held.ptr(), (Py_ssize_t)i)
                              : PyList_GetItem(held.ptr(), (Py_ssize_t)i);
    if (!item)
        throw nb::python_error();
    return item;
}

static int64_t integer_of(nb::handle value)
{
    long long number = PyLong_AsLongLong(value.ptr());
    if (number == -1 && PyErr_Occurred())
        throw nb::python_error();
    return number;
}

Shape shape_of(nb::handle shape, const char *name)
{
    Shape result;
    if (PyLong_Check(shape.ptr())) {
        result.ndim = 1;
        result.extents[0] = integer_of(shape);
        return result;
    }
    Items items(shape);
    if (items.size() > BANYAN_MAX_DIMS)
        throw nb::value_error((std::string(name) + ": " + std::to_string(items.size()) +
                               " dimensions, but at most " + std::to_string(BANYAN_MAX_DIMS))
                                  .c_str());
    result.ndim = (int)items.size();
    for (size_t d = 0; d < items.size(); d++)
        result.extents[d] = integer_of(items[d]);
    return result;
}

const char *text_of(nb::handle text, const char *name)
{
    Py_ssize_t bytes;
    const char *result =
        PyUnicode_Check(text.ptr()) ? PyUnicode_AsUTF8AndSize(text.ptr(), &bytes) : nullptr;
    if (!result) {
        if (PyErr_Occurred())
            throw nb::python_error();
        throw nb::type_error((std::string(name) + ": a string is needed").c_str());
    }
    if (strlen(result) != (size_t)bytes)
        throw nb::value_error((std::string(name) + " has a NUL").c_str());
    return result;
}

Texts::Texts(nb::handle iterable)
{
    if (PyUnicode_Check(iterable.ptr()))
        throw nb::type_error("a list of strings is needed, not a string");
    Items items(iterable);
    for (size_t i = 0; i < items.size(); i++)
        strings.push_back(text_of(items[i], "the list"));
    for (const std::string &s : strings)
        pointers.push_back(s.c_str());
}

banyan_side side_of(nb::handle side)
{
    std::string text = text_of(side, "side");
    if (text != "source" && text != "destination")
        throw nb::value_error("side is \"source\" or \"destination\"");
    return text == "source" ? BANYAN_SOURCE : BANYAN_DESTINATION;
}

/* Types of many tensors, of which few differ. */
class DTypes {
  public:
    explicit DTypes(nb::handle dtypes, size_t count)
    {
        if (!is_many(dtypes)) {
            one = dtype_of(dtypes);
            return;
        }
        many.emplace(dtypes);
        if (many->size() != count)
            throw nb::value_error((std::to_string(many->size()) + " dtypes for " +
                                   std::to_string(count) + " names")
                                      .c_str());
    }
    DLDataType operator[](size_t i)
    {
        if (!many)
            return one;
        nb::handle dtype = (*many)[i];
        auto found = known.find(dtype.ptr());
        if (found == known.end())
            found = known.emplace(dtype.ptr(), dtype_of(dtype)).first;
        return found->second;
    }

  private:
    DLDataType one;
    std::optional<Items> many; /* which holds the types, so their addresses stay */
    std::unordered_map<PyObject *, DLDataType> known;
};

static void require_count(size_t count, size_t names, const char *what)
{
    if (count != names)
        throw nb::value_error(
            (std::to_string(count) + " " + what + " for " + std::to_string(names) + " names")
                .c_str());
}

/* ---- boxes, ranks, tensors, pieces ---- */

static Box make_box(nb::handle start, nb::handle extent)
{
    Shape from = shape_of(start, "start"), size = shape_of(extent, "extent");
    if (from.ndim != size.ndim)
        throw nb::value_error("start and extent have different lengths");
    Box box = {};
    box.box.ndim = from.ndim;
    for (int d = 0; d < from.ndim; d++) {
        box.box.start[d] = from.extents[d];
        box.box.extent[d] = size.extents[d];
        if (size.extents[d] < 0)
            throw nb::value_error("an extent of a box is negative");
    }
    return box;
}

static std::string box_text(const Box &box)
{
    char text[BANYAN_MAX_DIMS * 44];
    return banyan_box_format(&box.box, text, sizeof text);
}

static void require_same_dims(const Box &a, const Box &b)
{
    if (a.box.ndim != b.box.ndim)
        throw nb::value_error(("a box of " + std::to_string(a.box.ndim) + " dimensions, and one of " +
                               std::to_string(b.box.ndim))
                                  .c_str());
}

static nb::object box_slices(const Box &box)
{
    nb::object slices = nb::steal(PyTuple_New(box.box.ndim));
    for (int d = 0; d < box.box.ndim; d++) {
        nb::object from = nb::int_(box.box.start[d]);
        nb::object to = nb::int_(box.box.start[d] + box.box.extent[d]);
        PyTuple_SetItem(slices.ptr(), d, PySlice_New(from.ptr(), to.ptr(), nullptr));
    }
    return slices;
}

static std::vector<int> ranks_of(const banyan_rank_set &set)
{
    std::vector<int> ranks((size_t)banyan_rank_set_size(&set));
    for (size_t i = 0; i < ranks.size(); i++)
        ranks[i] = banyan_rank_set_at(&set, (int64_t)i);
    return ranks;
}

/* Ranks at one distance from each other: a range, or a list. */
static banyan_rank_set rank_set_of(nb::handle ranks)
{
    banyan_rank_set set = {};
    if (ranks.is_none())
        return set;
    Items items(ranks);
    if (items.size() == 0)
        return set;
    int64_t first = integer_of(items[0]);
    int64_t stride = items.size() > 1 ? integer_of(items[1]) - first : 0;
    for (size_t i = 0; i < items.size(); i++)
        if (integer_of(items[i]) != first + (int64_t)i * stride)
            throw nb::value_error("replicas: the ranks must be at equal distances");
    if (first < 0 || first > INT32_MAX || stride > INT32_MAX || stride < INT32_MIN)
        throw nb::value_error("replicas: a rank is out of range");
    set = banyan_rank_set_one((int)first);
    set.count[BANYAN_RANK_SET_LEVELS - 1] = (int)items.size();
    set.stride[BANYAN_RANK_SET_LEVELS - 1] = (int)stride;
    return set;
}

LocalTensor::LocalTensor(const banyan_local_tensor &tensor)
    : name(tensor.name), dtype(tensor.dtype)
{
    shape.ndim = tensor.ndim;
    memcpy(shape.extents, tensor.shape, sizeof shape.extents);
}

static uint64_t tensor_bytes(const LocalTensor &tensor)
{
    uint64_t bytes = banyan_dtype_bytes(tensor.dtype);
    for (int d = 0; d < tensor.shape.ndim; d++)
        bytes *= (uint64_t)tensor.shape.extents[d];
    return bytes;
}

/* A copy: the layout's pieces move when more are added. */
struct Piece {
    banyan_piece piece;
    std::string name, fallback_name;
    int local_ndim;
};

static nb::object dim_map_of(const Piece &p)
{
    nb::object map = nb::steal(PyTuple_New(p.piece.ndim));
    for (int d = 0; d < p.piece.ndim; d++) {
        nb::object dim = p.piece.dim_map[d] == BANYAN_NO_DIM ? nb::none()
                                                            : nb::object(nb::int_(p.piece.dim_map[d]));
        PyTuple_SetItem(map.ptr(), d, dim.release().ptr());
    }
    return map;
}

/* ---- meshes and placements ---- */

struct Mesh {
    banyan_mesh mesh;
};

static Mesh make_mesh(nb::handle extent, nb::handle stride, int first_rank)
{
    Mesh mesh = {};
    Items extents(extent);
    if (extents.size() > BANYAN_RANK_SET_LEVELS)
        throw nb::value_error(("a mesh of " + std::to_string(extents.size()) +
                               " axes, but at most " + std::to_string(BANYAN_RANK_SET_LEVELS))
                                  .c_str());
    mesh.mesh.ndim = (int)extents.size();
    mesh.mesh.first_rank = first_rank;
    for (size_t k = 0; k < extents.size(); k++)
        mesh.mesh.extent[k] = nb::cast<int>(extents[k]);
    if (stride.is_none())
        return mesh;
    Items strides(stride);
    if (strides.size() != extents.size())
        throw nb::value_error("extent and stride have different lengths");
    for (size_t k = 0; k < strides.size(); k++)
        mesh.mesh.stride[k] = nb::cast<int>(strides[k]);
    return mesh;
}

/* The ranks of nested lists, and their shape. */
static void flatten(nb::handle nested, int depth, std::vector<int64_t> &shape,
                    std::vector<int64_t> &ranks)
{
    if (!is_many(nested)) {
        if ((size_t)depth != shape.size())
            throw nb::value_error("ranks: the lists have different depths");
        ranks.push_back(integer_of(nested));
        return;
    }
    Items items(nested);
    if ((size_t)depth == shape.size() && ranks.empty())
        shape.push_back((int64_t)items.size());
    if ((size_t)depth >= shape.size() || shape[depth] != (int64_t)items.size())
        throw nb::value_error("ranks: the lists have different lengths");
    for (size_t i = 0; i < items.size(); i++)
        flatten(items[i], depth + 1, shape, ranks);
}

static Mesh mesh_of_ranks(nb::object ranks)
{
    std::vector<int64_t> shape, list;
    if (nb::hasattr(ranks, "tolist"))
        ranks = ranks.attr("tolist")();
    flatten(ranks, 0, shape, list);
    if (list.empty() || shape.size() > BANYAN_RANK_SET_LEVELS)
        throw nb::value_error(("ranks: 1 to " + std::to_string(BANYAN_RANK_SET_LEVELS) +
                               " axes with at least one rank are possible")
                                  .c_str());
    Mesh mesh = {};
    mesh.mesh.ndim = (int)shape.size();
    mesh.mesh.first_rank = (int)list[0];
    size_t below = 1; /* distance in the list of neighbours along the axis */
    for (size_t k = shape.size(); k-- > 0; below *= (size_t)shape[k]) {
        mesh.mesh.extent[k] = (int)shape[k];
        mesh.mesh.stride[k] = shape[k] > 1 ? (int)(list[below] - list[0]) : 0;
    }
    for (size_t i = 0; i < list.size(); i++) {
        int64_t rank = list[0];
        size_t rest = i;
        for (size_t k = shape.size(); k-- > 0; rest /= (size_t)shape[k])
            rank += (int64_t)(rest % (size_t)shape[k]) * mesh.mesh.stride[k];
        if (rank != list[i])
            throw nb::value_error(("ranks: rank " + std::to_string(list[i]) + " is where an even "
                                   "spacing has rank " + std::to_string(rank))
                                      .c_str());
    }
    return mesh;
}

struct Placement {
    banyan_placement placement;
    int64_t split_factor; /* of PyTorch's _StridedShard; 0: not given */
};
struct Shard : Placement {};
struct Replicate : Placement {};
struct StridedShard : Placement {};

/* How to read a type of placements: this module's or PyTorch's. */
struct PlacementType {
    banyan_placement_kind kind;
    bool ours;
};

static const PlacementType &placement_type(nb::handle type)
{
    static std::unordered_map<PyObject *, PlacementType> known;
    auto found = known.find(type.ptr());
    if (found != known.end())
        return found->second;
    std::string name = nb::cast<std::string>(type.attr("__name__"));
    PlacementType read = {BANYAN_SHARD, false};
    if (PyObject_IsSubclass(type.ptr(), nb::type<Placement>().ptr()) == 1)
        read.ours = true;
    else if (name == "Replicate")
        read.kind = BANYAN_REPLICATE;
    else if (name == "_StridedShard")
        read.kind = BANYAN_SHARD_STRIDED;
    else if (name != "Shard")
        throw nb::type_error(("placements: " + name +
                              " is none of Shard, Replicate and StridedShard" +
                              (name.find("Partial") != std::string::npos
                                   ? "; reduce partial sums before a reshard"
                                   : ""))
                                 .c_str());
    Py_INCREF(type.ptr()); /* types are few, and their addresses must stay */
    return known.emplace(type.ptr(), read).first->second;
}

static int64_t attribute_of(nb::handle object, PyObject *name)
{
    nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), name));
    if (!value.is_valid())
        throw nb::python_error();
    return integer_of(value);
}

static Placement placement_of(nb::handle object)
{
    static PyObject *const dim = PyUnicode_InternFromString("dim");
    static PyObject *const split_factor = PyUnicode_InternFromString("split_factor");
    const PlacementType &type = placement_type((PyObject *)Py_TYPE(object.ptr()));
    if (type.ours)
        return nb::cast<Placement &>(object);
    Placement result = {};
    result.placement.kind = type.kind;
    if (type.kind != BANYAN_REPLICATE)
        result.placement.dim = (int)attribute_of(object, dim);
    if (type.kind == BANYAN_SHARD_STRIDED)
        result.split_factor = attribute_of(object, split_factor);
    return result;
}

/* The placements of a tensor on a mesh. */
struct Placements {
    banyan_placement list[BANYAN_RANK_SET_LEVELS];

    Placements(nb::handle placements, const banyan_mesh &mesh, int ndim)
    {
        Items items(placements);
        Placement given[BANYAN_RANK_SET_LEVELS];
        if (items.size() != (size_t)mesh.ndim)
            throw nb::value_error((std::to_string(items.size()) + " placements for a mesh of " +
                                   std::to_string(mesh.ndim) + " axes")
                                      .c_str());
        for (int k = 0; k < mesh.ndim; k++) {
            given[k] = placement_of(items[(size_t)k]);
            if (given[k].placement.dim < 0)
                given[k].placement.dim += ndim; /* as PyTorch counts from the end */
            list[k] = given[k].placement;
        }
        for (int k = 0; k < mesh.ndim; k++)
            require_split_factor(given, mesh, k);
    }

    /* PyTorch's factor is the number of shards that later axes make of the dimension. */
    static void require_split_factor(const Placement *given, const banyan_mesh &mesh, int k)
    {
        if (given[k].split_factor == 0)
            return;
        int64_t shards = 1;
        for (int j = k + 1; j < mesh.ndim; j++)
            if (given[j].placement.kind == BANYAN_SHARD &&
                given[j].placement.dim == given[k].placement.dim)
                shards *= mesh.extent[j];
        if (given[k].split_factor != shards)
            throw nb::value_error(("placements: axis " + std::to_string(k) + " has split_factor " +
                                   std::to_string(given[k].split_factor) +
                                   ", but later axes make " + std::to_string(shards) +
                                   " shards of dimension " +
                                   std::to_string(given[k].placement.dim))
                                      .c_str());
    }
};

/* ---- building ---- */

static int add_tensor(Layout &layout, nb::handle name, nb::handle dtype, nb::handle shape)
{
    Shape s = shape_of(shape, "shape");
    int tensor = banyan_layout_add_tensor(layout.handle, text_of(name, "name"), dtype_of(dtype),
                                          s.ndim, s.extents);
    layout.check();
    return tensor;
}

static size_t add_tensors(Layout &layout, nb::handle names, nb::handle dtypes, nb::handle shapes)
{
    Items n(names), s(shapes);
    require_count(s.size(), n.size(), "shapes");
    DTypes types(dtypes, n.size());
    size_t first = banyan_layout_tensor_count(layout.handle);
    for (size_t i = 0; i < n.size(); i++) {
        Shape shape = shape_of(s[i], "shapes");
        if (banyan_layout_add_tensor(layout.handle, text_of(n[i], "names"), types[i], shape.ndim,
                                     shape.extents) < 0)
            break;
    }
    layout.check();
    return first;
}

static void add_sharded(Layout &layout, nb::handle name, nb::handle dtype, nb::handle shape,
                        const Mesh &mesh, nb::handle placements, int rank)
{
    Shape s = shape_of(shape, "shape");
    Placements p(placements, mesh.mesh, s.ndim);
    banyan_layout_add_sharded(layout.handle, text_of(name, "name"), dtype_of(dtype), s.ndim,
                              s.extents, &mesh.mesh, p.list, rank);
    layout.check();
}

static void add_sharded_many(Layout &layout, nb::handle names, nb::handle dtypes,
                             nb::handle shapes, nb::handle meshes, nb::handle placements, int rank)
{
    Items n(names), s(shapes), p(placements);
    require_count(s.size(), n.size(), "shapes");
    DTypes types(dtypes, n.size());
    std::optional<Items> m;
    if (is_many(meshes)) {
        m.emplace(meshes);
        require_count(m->size(), n.size(), "meshes");
    }
    bool one_each = p.size() > 0 && is_many(p[0]);
    if (one_each)
        require_count(p.size(), n.size(), "lists of placements");
    const Mesh *mesh = m ? nullptr : &nb::cast<const Mesh &>(meshes);
    std::optional<Placements> kept; /* of tensors that share the mesh, the list and the dimensions */
    nb::handle kept_list;
    const Mesh *kept_mesh = nullptr;
    int kept_ndim = -1;
    for (size_t i = 0; i < n.size(); i++) {
        Shape shape = shape_of(s[i], "shapes");
        if (m)
            mesh = &nb::cast<const Mesh &>((*m)[i]);
        nb::handle list = one_each ? p[i] : placements;
        if (!kept || !list.is(kept_list) || mesh != kept_mesh || shape.ndim != kept_ndim) {
            kept.emplace(list, mesh->mesh, shape.ndim);
            kept_list = list;
            kept_mesh = mesh;
            kept_ndim = shape.ndim;
        }
        banyan_layout_add_sharded(layout.handle, text_of(n[i], "names"), types[i], shape.ndim,
                                  shape.extents, &mesh->mesh, kept->list, rank);
    }
    layout.check();
}

static int local_ndim(const Layout &layout, int tensor)
{
    if (tensor < 0 || (size_t)tensor >= banyan_layout_tensor_count(layout.handle))
        throw nb::index_error(("the layout has no local tensor " + std::to_string(tensor)).c_str());
    return banyan_layout_tensor(layout.handle, (size_t)tensor)->ndim;
}

static void add_piece(Layout &layout, int tensor, nb::handle name, nb::handle shape,
                      const Box *box, nb::handle local_start, nb::handle dim_map,
                      nb::handle fallback_name, bool persistent_buffer, bool negative_exp,
                      nb::handle replicas)
{
    int ndim = local_ndim(layout, tensor);
    Shape s = shape_of(shape, "shape");
    banyan_piece piece = {};
    piece.tensor = tensor;
    piece.name = text_of(name, "name");
    piece.fallback_name =
        fallback_name.is_none() ? nullptr : text_of(fallback_name, "fallback_name");
    piece.ndim = s.ndim;
    memcpy(piece.shape, s.extents, sizeof piece.shape);
    if (box) {
        piece.box = box->box;
    } else {
        piece.box.ndim = s.ndim;
        memcpy(piece.box.extent, s.extents, sizeof s.extents);
    }
    if (!local_start.is_none()) {
        Shape start = shape_of(local_start, "local_start");
        if (start.ndim != ndim)
            throw nb::value_error(("local_start has " + std::to_string(start.ndim) +
                                   " numbers, but the local tensor " + std::to_string(ndim) +
                                   " dimensions")
                                      .c_str());
        memcpy(piece.local_start, start.extents, sizeof(int64_t) * (size_t)ndim);
    }
    for (int d = 0; d < s.ndim; d++)
        piece.dim_map[d] = d;
    if (!dim_map.is_none()) {
        Items map(dim_map);
        if (map.size() != (size_t)s.ndim)
            throw nb::value_error("dim_map needs one entry for each dimension of shape");
        for (size_t d = 0; d < map.size(); d++)
            piece.dim_map[d] = map[d].is_none() ? BANYAN_NO_DIM : nb::cast<int>(map[d]);
    }
    piece.flags = (persistent_buffer ? (uint32_t)BANYAN_PIECE_PERSISTENT_BUFFER : 0) |
                  (negative_exp ? (uint32_t)BANYAN_PIECE_NEGATIVE_EXP : 0);
    piece.replicas = rank_set_of(replicas);
    banyan_layout_add_piece(layout.handle, &piece);
    layout.check();
}

static void add_padding(Layout &layout, int tensor, const Box &box, nb::handle fill)
{
    local_ndim(layout, tensor);
    if (fill.is_none()) {
        banyan_layout_add_padding(layout.handle, tensor, &box.box);
    } else {
        nb::bytes element = nb::cast<nb::bytes>(fill);
        size_t bytes = banyan_dtype_bytes(banyan_layout_tensor(layout.handle, (size_t)tensor)->dtype);
        if (element.size() != bytes)
            throw nb::value_error(("fill has " + std::to_string(element.size()) +
                                   " bytes, but an element " + std::to_string(bytes))
                                      .c_str());
        banyan_layout_add_filled_padding(layout.handle, tensor, &box.box, element.data());
    }
    layout.check();
}

static void add_megatron(Layout &layout, nb::handle name, nb::handle dtype, nb::handle shape,
                         int rank, nb::handle resolved_name, bool is_tp, int partition_dim,
                         int partition_stride, std::vector<int64_t> partition_sizes,
                         std::vector<int> tp_ranks, std::vector<int> dp_ranks, bool is_ep,
                         bool persistent_buffer, int rank_offset)
{
    Shape s = shape_of(shape, "shape");
    banyan_megatron_tensor t = {};
    t.name = text_of(name, "name");
    t.resolved_name = resolved_name.is_none() ? t.name : text_of(resolved_name, "resolved_name");
    t.dtype = dtype_of(dtype);
    t.ndim = s.ndim;
    memcpy(t.shape, s.extents, sizeof t.shape);
    t.is_tp = is_tp;
    t.partition_dim = partition_dim;
    t.partition_stride = partition_stride;
    t.partition_sizes = partition_sizes.data();
    t.partition_size_count = (int)partition_sizes.size();
    t.tp_ranks = tp_ranks.data();
    t.tp_rank_count = (int)tp_ranks.size();
    t.dp_ranks = dp_ranks.data();
    t.dp_rank_count = (int)dp_ranks.size();
    t.is_ep = is_ep;
    t.persistent_buffer = persistent_buffer;
    banyan_layout_add_megatron(layout.handle, &t, rank, rank_offset);
    layout.check();
}

static std::shared_ptr<Rules> load_rules(nb::handle path)
{
    auto rules = std::make_shared<Rules>();
    std::string file = path.is_none() ? "" : path_of(path);
    check(banyan_rules_load(path.is_none() ? nullptr : file.c_str(), &rules->handle));
    return rules;
}

static void add_model(Layout &layout, const Model &model, const Spec &spec, int rank,
                      std::shared_ptr<Rules> rules, int rank_offset)
{
    int ranks = banyan_spec_world_size(&spec.spec);
    if (rank < 0 || rank >= ranks)
        throw nb::value_error(("rank " + std::to_string(rank) + " is not in the " +
                               std::to_string(ranks) + " ranks of \"" + spec.text + "\"")
                                  .c_str());
    if (!rules)
        rules = load_rules(nb::none());
    banyan_layout_add_model(layout.handle, model.handle, rules->handle, &spec.spec, rank,
                            rank_offset);
    layout.check();
}

/* ---- reading ---- */

static std::vector<LocalTensor> tensors_of(const Layout &layout)
{
    std::vector<LocalTensor> tensors;
    size_t count = banyan_layout_tensor_count(layout.handle);
    tensors.reserve(count);
    for (size_t i = 0; i < count; i++)
        tensors.emplace_back(*banyan_layout_tensor(layout.handle, i));
    return tensors;
}

static std::vector<Piece> pieces_of(const Layout &layout)
{
    std::vector<Piece> pieces;
    size_t count = banyan_layout_piece_count(layout.handle);
    pieces.reserve(count);
    for (size_t i = 0; i < count; i++) {
        const banyan_piece *p = banyan_layout_piece(layout.handle, i);
        pieces.push_back({*p, p->name, p->fallback_name ? p->fallback_name : "",
                          banyan_layout_tensor(layout.handle, (size_t)p->tensor)->ndim});
    }
    return pieces;
}

static nb::list padding_of(const Layout &layout)
{
    nb::list padding;
    for (size_t i = 0; i < banyan_layout_padding_count(layout.handle); i++) {
        int tensor;
        Box box{*banyan_layout_padding(layout.handle, i, &tensor)};
        const void *fill = banyan_layout_padding_fill(layout.handle, i);
        size_t bytes =
            banyan_dtype_bytes(banyan_layout_tensor(layout.handle, (size_t)tensor)->dtype);
        padding.append(nb::make_tuple(
            tensor, box, fill ? nb::object(nb::bytes(fill, bytes)) : nb::none()));
    }
    return padding;
}

static nb::list left_alone_of(const Layout &layout)
{
    nb::list boxes;
    for (size_t i = 0; i < banyan_layout_left_alone_count(layout.handle); i++) {
        int tensor;
        Box box{*banyan_layout_left_alone(layout.handle, i, &tensor)};
        boxes.append(nb::make_tuple(tensor, box));
    }
    return boxes;
}

/* ---- binding ---- */

static void bind_boxes(nb::module_ &m)
{
    nb::class_<Box>(m, "Box", nb::is_weak_referenceable(),
                    "The elements with start[d] <= i[d] < start[d] + extent[d] of a tensor.")
        .def("__init__",
             [](Box *self, nb::object start, nb::object extent) {
                 new (self) Box(make_box(start, extent));
             },
             "start"_a, "extent"_a,
             nb::sig("def __init__(self, start: collections.abc.Sequence[int], extent: "
                     "collections.abc.Sequence[int]) -> None"),
             "Make the box; both have a number for each dimension.")
        .def_prop_ro("start", [](const Box &b) { return tuple_of(b.box.start, b.box.ndim); },
                     nb::sig("def start(self) -> tuple[int, ...]"), "First index in each dimension.")
        .def_prop_ro("extent", [](const Box &b) { return tuple_of(b.box.extent, b.box.ndim); },
                     nb::sig("def extent(self) -> tuple[int, ...]"),
                     "Number of indices in each dimension.")
        .def_prop_ro("elems", [](const Box &b) { return banyan_box_elems(&b.box); },
                     "Number of elements.")
        .def_prop_ro("slices", box_slices, nb::sig("def slices(self) -> tuple[slice, ...]"),
                     "Slices that select the box of a tensor: ``tensor[box.slices]``.")
        .def("intersect",
             [](const Box &a, const Box &b) -> std::optional<Box> {
                 require_same_dims(a, b);
                 Box out;
                 return banyan_box_intersect(&a.box, &b.box, &out.box) ? std::optional<Box>(out)
                                                                      : std::nullopt;
             },
             "other"_a, "Return the common elements, or None if there are none.")
        .def("subtract",
             [](const Box &a, const Box &b) {
                 require_same_dims(a, b);
                 banyan_box out[2 * BANYAN_MAX_DIMS];
                 int count = banyan_box_subtract(&a.box, &b.box, out);
                 std::vector<Box> boxes;
                 for (int i = 0; i < count; i++)
                     boxes.push_back({out[i]});
                 return boxes;
             },
             "other"_a, "Return the elements that are not in ``other``, as disjoint boxes.")
        .def("__eq__",
             [](const Box &a, nb::handle b) {
                 return nb::isinstance<Box>(b) &&
                        banyan_box_equal(&a.box, &nb::cast<const Box &>(b).box);
             },
             "other"_a.none(), nb::sig("def __eq__(self, other: object) -> bool"))
        .def("__hash__", [](const Box &b) { return nb::hash(nb::str(box_text(b).c_str())); })
        .def("__str__", box_text)
        .def("__repr__", [](const Box &b) { return "banyan.Box(" + box_text(b) + ")"; });

    nb::class_<LocalTensor>(m, "LocalTensor", "Name, type and shape of a tensor.")
        .def_ro("name", &LocalTensor::name, "Name, unique in its layout, model or file.")
        .def_prop_ro("dtype", [](const LocalTensor &t) { return dtype_text(t.dtype); },
                     "Type of the elements, for example \"bfloat16\".")
        .def_prop_ro("shape",
                     [](const LocalTensor &t) { return tuple_of(t.shape.extents, t.shape.ndim); },
                     nb::sig("def shape(self) -> tuple[int, ...]"), "Extents, in elements.")
        .def_prop_ro("nbytes", tensor_bytes, "Bytes of the tensor, dense.")
        .def("__repr__", [](const LocalTensor &t) {
            return "banyan.LocalTensor(\"" + t.name + "\", \"" + dtype_text(t.dtype) + "\", " +
                   nb::cast<std::string>(nb::repr(tuple_of(t.shape.extents, t.shape.ndim))) + ")";
        });

    nb::class_<Piece>(m, "Piece",
                      "A box of a global tensor, and its place in a local tensor of a layout.")
        .def_prop_ro("tensor", [](const Piece &p) { return p.piece.tensor; },
                     "Number of the local tensor.")
        .def_ro("name", &Piece::name, "Name of the global tensor.")
        .def_prop_ro("fallback_name",
                     [](const Piece &p) {
                         return p.fallback_name.empty() ? std::nullopt
                                                        : std::optional(p.fallback_name);
                     },
                     "Name of the global tensor that fills the piece if no source has ``name``.")
        .def_prop_ro("shape", [](const Piece &p) { return tuple_of(p.piece.shape, p.piece.ndim); },
                     nb::sig("def shape(self) -> tuple[int, ...]"), "Shape of the global tensor.")
        .def_prop_ro("box", [](const Piece &p) { return Box{p.piece.box}; },
                     "Elements of the global tensor.")
        .def_prop_ro("local_start",
                     [](const Piece &p) { return tuple_of(p.piece.local_start, p.local_ndim); },
                     nb::sig("def local_start(self) -> tuple[int, ...]"),
                     "Index of the first element in the local tensor.")
        .def_prop_ro("dim_map", dim_map_of, nb::sig("def dim_map(self) -> tuple[int | None, ...]"),
                     "Local dimension of each global one; None: the local tensor does not have it.")
        .def_prop_ro("persistent_buffer",
                     [](const Piece &p) {
                         return (p.piece.flags & BANYAN_PIECE_PERSISTENT_BUFFER) != 0;
                     },
                     "The type of the source counts.")
        .def_prop_ro("negative_exp",
                     [](const Piece &p) { return (p.piece.flags & BANYAN_PIECE_NEGATIVE_EXP) != 0; },
                     "The local elements are -exp(x) of the global ones.")
        .def_prop_ro("replicas", [](const Piece &p) { return ranks_of(p.piece.replicas); },
                     "Ranks that hold the same box; empty: unknown.")
        .def("__repr__", [](const Piece &p) {
            return "banyan.Piece(\"" + p.name + "\", " + box_text({p.piece.box}) + ")";
        });
}

static std::string placement_text(const Placement &p)
{
    static const char *const names[] = {"Replicate", "Shard", "StridedShard"};
    std::string text = std::string("banyan.") + names[p.placement.kind] + "(";
    return text + (p.placement.kind == BANYAN_REPLICATE ? "" : std::to_string(p.placement.dim)) +
           ")";
}

static void bind_meshes(nb::module_ &m)
{
    nb::class_<Mesh>(m, "Mesh",
                     "A device mesh: the ranks first_rank + sum(i[k] * stride[k]) for 0 <= i[k] < "
                     "extent[k].")
        .def("__init__",
             [](Mesh *self, nb::object extent, nb::object stride, int first_rank) {
                 new (self) Mesh(make_mesh(extent, stride, first_rank));
             },
             "extent"_a, "stride"_a = nb::none(), "first_rank"_a = 0,
             nb::sig("def __init__(self, extent: collections.abc.Sequence[int], stride: "
                     "collections.abc.Sequence[int] | None = None, first_rank: int = 0) -> None"),
             "Make a mesh of up to 4 axes. ``stride`` None: row-major over consecutive ranks.")
        .def_static("from_ranks", mesh_of_ranks, "ranks"_a,
                    nb::sig("def from_ranks(ranks: typing.Any) -> Mesh"),
                    "Make a mesh of the ranks in nested lists or an array, such as "
                    "``DeviceMesh.mesh``. They must be evenly spaced along each axis.")
        .def_prop_ro("extent", [](const Mesh &m) { return tuple_of(m.mesh.extent, m.mesh.ndim); },
                     nb::sig("def extent(self) -> tuple[int, ...]"), "Ranks along each axis.")
        .def_prop_ro("stride", [](const Mesh &m) { return tuple_of(m.mesh.stride, m.mesh.ndim); },
                     nb::sig("def stride(self) -> tuple[int, ...]"),
                     "Distance of ranks along each axis; all 0: row-major.")
        .def_prop_ro("first_rank", [](const Mesh &m) { return m.mesh.first_rank; },
                     "The first rank.")
        .def("__repr__", [](const Mesh &m) {
            auto text = [&](const int *values) {
                return nb::cast<std::string>(nb::repr(tuple_of(values, m.mesh.ndim)));
            };
            return "banyan.Mesh(" + text(m.mesh.extent) + ", " + text(m.mesh.stride) + ", " +
                   std::to_string(m.mesh.first_rank) + ")";
        });

    nb::class_<Placement>(m, "Placement",
                          "How one axis of a mesh divides a tensor: Shard, Replicate or "
                          "StridedShard. PyTorch's placements are accepted, too.")
        .def_prop_ro("dim",
                     [](const Placement &p) {
                         return p.placement.kind == BANYAN_REPLICATE
                                    ? std::nullopt
                                    : std::optional(p.placement.dim);
                     },
                     "Dimension of the tensor that is split; None: it is replicated.")
        .def("__eq__",
             [](const Placement &a, nb::handle other) {
                 if (!nb::isinstance<Placement>(other))
                     return false;
                 auto &b = nb::cast<const Placement &>(other);
                 return a.placement.kind == b.placement.kind && a.placement.dim == b.placement.dim;
             },
             "other"_a.none(), nb::sig("def __eq__(self, other: object) -> bool"))
        .def("__hash__", [](const Placement &p) { return p.placement.kind * 64 + p.placement.dim; })
        .def("__repr__", placement_text);
    nb::class_<Shard, Placement>(m, "Shard", "Split a dimension, by torch.chunk's rule.")
        .def("__init__", [](Shard *self, int dim) { new (self) Shard{{{BANYAN_SHARD, dim}, 0}}; },
             "dim"_a, "Split dimension ``dim``; negative numbers count from the last one.");
    nb::class_<Replicate, Placement>(m, "Replicate", "Every rank of the axis holds the same.")
        .def("__init__", [](Replicate *self) { new (self) Replicate{{{BANYAN_REPLICATE, 0}, 0}}; });
    nb::class_<StridedShard, Placement>(
        m, "StridedShard",
        "Split a dimension after all axes with Shard, as FSDP2 does (PyTorch's _StridedShard).")
        .def("__init__",
             [](StridedShard *self, int dim) {
                 new (self) StridedShard{{{BANYAN_SHARD_STRIDED, dim}, 0}};
             },
             "dim"_a, "Split dimension ``dim``; negative numbers count from the last one.");
}

#define SEQUENCE "collections.abc.Sequence"

static void bind_layout_class(nb::module_ &m)
{
    nb::class_<Layout>(
        m, "Layout", nb::is_weak_referenceable(),
        "The tensors in a rank's memory, and the pieces of the model's tensors in each of them.\n\n"
        "Methods that add raise the error of their addition. The layout keeps it: build a new one "
        "then. Names of arguments are those of banyan/layout.h.")
        .def(nb::init<>())
        .def("add_tensor", add_tensor, "name"_a, "dtype"_a, "shape"_a,
             nb::sig("def add_tensor(self, name: str, dtype: banyan.DTypeLike, shape: " SEQUENCE
                     "[int]) -> int"),
             "Add a local tensor, whose name must be unique in the layout. Return its number.")
        .def("add_tensors", add_tensors, "names"_a, "dtypes"_a, "shapes"_a,
             nb::sig("def add_tensors(self, names: collections.abc.Iterable[str], dtypes: "
                     "banyan.DTypeLike | " SEQUENCE "[banyan.DTypeLike], shapes: "
                     "collections.abc.Iterable[" SEQUENCE "[int]]) -> int"),
             "Add many local tensors. ``dtypes`` is one type, or a list with one for each. Return "
             "the number of the first; the others follow it.")
        .def("add_piece", add_piece, "tensor"_a, "name"_a, "shape"_a, "box"_a = nb::none(),
             nb::kw_only(), "local_start"_a = nb::none(), "dim_map"_a = nb::none(),
             "fallback_name"_a = nb::none(), "persistent_buffer"_a = false, "negative_exp"_a = false,
             "replicas"_a = nb::none(),
             nb::sig("def add_piece(self, tensor: int, name: str, shape: " SEQUENCE
                     "[int], box: Box | None = None, *, local_start: " SEQUENCE
                     "[int] | None = None, dim_map: " SEQUENCE
                     "[int | None] | None = None, fallback_name: str | None = None, "
                     "persistent_buffer: bool = False, negative_exp: bool = False, replicas: "
                     "collections.abc.Iterable[int] | None = None) -> None"),
             "Add a box of the global tensor ``name`` of ``shape`` to the local tensor with the "
             "number ``tensor``.\n\n"
             "``box`` None: all of it. ``local_start``: where the box begins in the local tensor; "
             "None: at 0. ``dim_map``: the local dimension of each global one, None where the "
             "local tensor does not have it; without it, dimensions are the same. "
             "``fallback_name``: the global tensor that fills the piece if no source has ``name``. "
             "``replicas``: evenly spaced ranks that hold the same box.")
        .def("add_padding", add_padding, "tensor"_a, "box"_a, "fill"_a = nb::none(),
             nb::sig("def add_padding(self, tensor: int, box: Box, fill: bytes | None = None) -> "
                     "None"),
             "Declare elements of a local tensor as padding: runs fill them with the element whose "
             "bytes are ``fill``, or with zeros.")
        .def("leave_alone",
             [](Layout &l, int tensor, const Box &box) {
                 local_ndim(l, tensor);
                 banyan_layout_leave_alone(l.handle, tensor, &box.box);
                 l.check();
             },
             "tensor"_a, "box"_a,
             "Declare elements of a local tensor that belong to no piece and that runs do not "
             "change.")
        .def("add_sharded", add_sharded, "name"_a, "dtype"_a, "shape"_a, "mesh"_a, "placements"_a,
             "rank"_a,
             nb::sig("def add_sharded(self, name: str, dtype: banyan.DTypeLike, shape: " SEQUENCE
                     "[int], mesh: Mesh, placements: " SEQUENCE
                     "[banyan.PlacementLike], rank: int) -> None"),
             "Add the shard of a global tensor of ``shape`` that ``rank`` holds, as DTensor splits "
             "it: one placement for each axis of the mesh. A rank outside the mesh adds nothing.")
        .def("add_sharded_many", add_sharded_many, "names"_a, "dtypes"_a, "shapes"_a, "meshes"_a,
             "placements"_a, "rank"_a,
             nb::sig("def add_sharded_many(self, names: collections.abc.Iterable[str], dtypes: "
                     "banyan.DTypeLike | " SEQUENCE "[banyan.DTypeLike], shapes: "
                     "collections.abc.Iterable[" SEQUENCE "[int]], meshes: Mesh | " SEQUENCE
                     "[Mesh], placements: " SEQUENCE "[banyan.PlacementLike] | " SEQUENCE
                     "[" SEQUENCE "[banyan.PlacementLike]], rank: int) -> None"),
             "As add_sharded for many tensors. ``dtypes``, ``meshes`` and ``placements`` are each "
             "one for all tensors, or a list (or tuple) with one for each tensor.")
        .def("add_megatron", add_megatron, "name"_a, "dtype"_a, "shape"_a, "rank"_a, nb::kw_only(),
             "resolved_name"_a = nb::none(), "is_tp"_a = false, "partition_dim"_a = 0,
             "partition_stride"_a = 1, "partition_sizes"_a = nb::make_tuple(),
             "tp_ranks"_a = nb::make_tuple(), "dp_ranks"_a = nb::make_tuple(), "is_ep"_a = false,
             "persistent_buffer"_a = false, "rank_offset"_a = 0,
             nb::sig("def add_megatron(self, name: str, dtype: banyan.DTypeLike, shape: " SEQUENCE
                     "[int], rank: int, *, resolved_name: str | None = None, is_tp: bool = False, "
                     "partition_dim: int = 0, partition_stride: int = 1, partition_sizes: " SEQUENCE
                     "[int] = (), tp_ranks: " SEQUENCE "[int] = (), dp_ranks: " SEQUENCE
                     "[int] = (), is_ep: bool = False, persistent_buffer: bool = False, "
                     "rank_offset: int = 0) -> None"),
             "Add a parameter as Megatron-Core describes it (ParameterMetadata), as ``rank`` holds "
             "it. ``shape`` is the local one. ``resolved_name``: the name in the whole model; None: "
             "``name``.")
        .def("add_model", add_model, "model"_a, "spec"_a, "rank"_a, nb::kw_only(),
             "rules"_a = nb::none(), "rank_offset"_a = 0,
             nb::sig("def add_model(self, model: Model, spec: Spec, rank: int, *, rules: Rules | "
                     "None = None, rank_offset: int = 0) -> None"),
             "Add everything that ``rank`` of a job with this spec holds of a model. ``rules`` "
             "None: the built-in ones. ``rank_offset`` is added to replicas.")
        .def("add_file",
             [](Layout &l, const LayoutFile &file, int rank, int rank_offset) {
                 banyan_layout_add_file(l.handle, file.handle, rank, rank_offset);
                 l.check();
             },
             "file"_a, "rank"_a, "rank_offset"_a = 0,
             "Add everything that ``rank`` of a layout file holds.")
        .def("add_case",
             [](Layout &l, const MegatronCase &c, int rank, nb::handle side) {
                 int size = banyan_megatron_case_world_size(c.handle);
                 if (rank < 0 || rank >= size)
                     throw nb::value_error(("rank " + std::to_string(rank) + " is not in the " +
                                            std::to_string(size) + " ranks of the case")
                                               .c_str());
                 size_t count;
                 const banyan_megatron_tensor *tensors =
                     banyan_megatron_case_tensors(c.handle, rank, side_of(side), &count);
                 for (size_t i = 0; i < count; i++)
                     banyan_layout_add_megatron(l.handle, &tensors[i], rank, 0);
                 l.check();
             },
             "case"_a, "rank"_a, "side"_a,
             nb::sig("def add_case(self, case: MegatronCase, rank: int, side: banyan.Side) -> "
                     "None"),
             "Add the tensors that ``rank`` of a test case has on one side.")
        .def("check",
             [](const Layout &l, nb::handle side) {
                 check(side.is_none() ? banyan_layout_check(l.handle)
                                      : banyan_layout_check_as(l.handle, side_of(side)));
             },
             "side"_a = nb::none(), nb::sig("def check(self, side: banyan.Side | None = None) -> "
                                            "None"),
             "Raise Invalid if pieces overlap or contradict each other; for a destination, also if "
             "an element belongs to no piece, is not padding and is not left alone.")
        .def_prop_ro("tensors", tensors_of, "Local tensors, as a new list.")
        .def_prop_ro("pieces", pieces_of, "Pieces, as a new list.")
        .def_prop_ro("padding", padding_of,
                     nb::sig("def padding(self) -> list[tuple[int, Box, bytes | None]]"),
                     "Padding: number of the local tensor, box, and bytes of the element that "
                     "fills it (None: zeros).")
        .def_prop_ro("left_alone", left_alone_of,
                     nb::sig("def left_alone(self) -> list[tuple[int, Box]]"),
                     "Boxes that are left alone: number of the local tensor, and box.")
        .def_prop_ro("nbytes", [](const Layout &l) { return banyan_layout_bytes(l.handle); },
                     "Bytes of all local tensors, dense.")
        .def("__len__", [](const Layout &l) { return banyan_layout_tensor_count(l.handle); })
        .def("__repr__", [](const Layout &l) {
            return "banyan.Layout(" + std::to_string(banyan_layout_tensor_count(l.handle)) +
                   " tensors, " + std::to_string(banyan_layout_piece_count(l.handle)) +
                   " pieces, " + std::to_string(banyan_layout_bytes(l.handle)) + " bytes)";
        });
}

static std::vector<std::vector<int>> groups_of(const LayoutFile &file)
{
    std::vector<std::vector<int>> groups;
    for (size_t i = 0; i < banyan_layout_file_group_count(file.handle); i++) {
        size_t count;
        const int *ranks = banyan_layout_file_group_ranks(file.handle, i, &count);
        groups.emplace_back(ranks, ranks + count);
    }
    return groups;
}

static void bind_files(nb::module_ &m)
{
    auto file = nb::class_<LayoutFile>(m, "LayoutFile", nb::is_weak_referenceable(),
                                       "The layouts of all ranks of a job, as in a JSON file.");
    file.def("__init__",
             [](LayoutFile *self, nb::object path) {
                 new (self) LayoutFile;
                 std::string name = path.is_none() ? "" : path_of(path);
                 work([&] {
                     return path.is_none() ? banyan_layout_file_create(&self->handle)
                                           : banyan_layout_file_load(name.c_str(), &self->handle);
                 });
             },
             "path"_a = nb::none(),
             nb::sig("def __init__(self, path: banyan.PathLike | None = None) -> None"),
             "Load a layout file, or make an empty one.")
        .def("add",
             [](LayoutFile &f, int rank, const Layout &layout) {
                 check(banyan_layout_file_add(f.handle, rank, layout.handle));
             },
             "rank"_a, "layout"_a, "Add a copy of the layout of a rank.")
        .def("save",
             [](const LayoutFile &f, nb::object path) {
                 std::string name = path_of(path);
                 check(banyan_layout_file_save(f.handle, name.c_str()));
             },
             "path"_a, nb::sig("def save(self, path: banyan.PathLike) -> None"),
             "Write the file, in one step.")
        .def("check",
             [](const LayoutFile &f, nb::handle side) {
                 check(banyan_layout_file_check(f.handle, side_of(side)));
             },
             "side"_a, nb::sig("def check(self, side: banyan.Side) -> None"),
             "Check the layouts of all ranks together, as one side of a reshard.")
        .def("layout",
             [](const LayoutFile &f, int rank, int rank_offset) {
                 auto layout = std::make_shared<Layout>();
                 banyan_layout_add_file(layout->handle, f.handle, rank, rank_offset);
                 layout->check();
                 return layout;
             },
             "rank"_a, "rank_offset"_a = 0,
             "Return a copy of the layout of a rank; it is empty if the file lacks the rank.")
        .def_prop_ro("rank_count",
                     [](const LayoutFile &f) { return banyan_layout_file_rank_count(f.handle); },
                     "Highest rank in the file, plus 1.")
        .def_prop_ro("groups", groups_of, "Lists of ranks with equal layouts.");

    auto model = nb::class_<Model>(m, "Model", nb::is_weak_referenceable(),
                                   "Names, shapes and types of a model's tensors.");
    model
        .def("__init__",
             [](Model *self, nb::object path) {
                 new (self) Model;
                 std::string name = path_of(path);
                 work([&] { return banyan_model_load(name.c_str(), &self->handle); });
             },
             "path"_a, nb::sig("def __init__(self, path: banyan.PathLike) -> None"),
             "Load a tensor list (JSON), a Hugging Face folder, a folder that ranks saved, or one "
             "safetensors file.")
        .def("add_config",
             [](Model &m, nb::object path) {
                 std::string name = path_of(path);
                 check(banyan_model_add_config(m.handle, name.c_str()));
             },
             "path"_a, nb::sig("def add_config(self, path: banyan.PathLike) -> None"),
             "Read the config.json of a model that was loaded without one.")
        .def("skip",
             [](Model &m, const char *pattern) {
                 size_t count;
                 check(banyan_model_skip(m.handle, pattern, &count));
                 return count;
             },
             "pattern"_a,
             "Omit the tensors that match from all layouts built later (``*``: any characters but "
             "a dot; ``**``: any). Return their number.")
        .def_prop_ro("tensors",
                     [](const Model &m) {
                         std::vector<LocalTensor> tensors;
                         for (size_t i = 0; i < banyan_model_tensor_count(m.handle); i++)
                             tensors.emplace_back(*banyan_model_tensor(m.handle, i));
                         return tensors;
                     },
                     "Tensors in the order of the file, as a new list.")
        .def_prop_ro("nbytes", [](const Model &m) { return banyan_model_bytes(m.handle); },
                     "Bytes of all tensors.")
        .def("__len__", [](const Model &m) { return banyan_model_tensor_count(m.handle); });

    nb::class_<Spec>(m, "Spec", "A parallel layout in a line: \"tp=2,pp=2,dp=1,ep=4,packing=vllm\".")
        .def("__init__",
             [](Spec *self, const char *text) {
                 new (self) Spec{{}, text};
                 check(banyan_spec_parse(text, &self->spec));
             },
             "text"_a = "", "Parse a spec. Missing keys are 1; docs/layouts.md describes them.")
        .def_prop_ro("world_size", [](const Spec &s) { return banyan_spec_world_size(&s.spec); },
                     "Number of ranks: tp * pp * dp * fsdp.")
#define SIZE(name, doc) .def_prop_ro(#name, [](const Spec &s) { return s.spec.name; }, doc)
        // clang-format off
        SIZE(tp, "Tensor-parallel ranks.")
        SIZE(pp, "Pipeline stages.")
        SIZE(dp, "Replicas.")
        SIZE(fsdp, "Ranks over which the rows of each replica are sharded.")
        SIZE(ep, "Expert-parallel ranks.")
        SIZE(etp, "Tensor-parallel ranks of experts.")
        SIZE(vocab_multiple, "The vocabulary is padded to a multiple of it; 0: not; -1: as the "
                             "packing does.")
        SIZE(head, "Elements of an attention head; 0: not given.")
        // clang-format on
#undef SIZE
        .def_prop_ro("packing", [](const Spec &s) { return std::string(s.spec.packing); },
                     "Packing, for example \"hf\" or \"vllm\".")
        .def("__str__", [](const Spec &s) { return s.text; })
        .def("__repr__", [](const Spec &s) { return "banyan.Spec(\"" + s.text + "\")"; });
}

/* ---- rules ---- */

static nb::list explain(const Rules &rules, const Model &model, const char *packing)
{
    static const char *const verdicts[] = {"matched", "skipped", "unmatched", "undecided",
                                           "incomplete"};
    nb::list lines;
    for (size_t i = 0; i < banyan_model_tensor_count(model.handle); i++) {
        banyan_rules_verdict verdict;
        char text[4096];
        check(banyan_rules_explain(rules.handle, model.handle, packing, i, &verdict, text,
                                   sizeof text));
        lines.append(nb::make_tuple(banyan_model_tensor(model.handle, i)->name, verdicts[verdict],
                                    text));
    }
    return lines;
}

static void bind_rules(nb::module_ &m)
{
    auto rules = nb::class_<Rules>(m, "Rules", nb::is_weak_referenceable(),
                                   "Rules that define how the tensors of a model are split, and "
                                   "where they lie in the packing of an engine.");
    def_new(rules, load_rules, "path: banyan.PathLike | None = None",
            "Load a rule file. None: the built-in rules.", "path"_a = nb::none());
    rules
        .def_prop_ro("packings",
                     [](const Rules &r) {
                         nb::dict packings;
                         for (size_t i = 0; i < banyan_rules_packing_count(r.handle); i++) {
                             const char *release = banyan_rules_packing_release(r.handle, i);
                             packings[banyan_rules_packing_name(r.handle, i)] =
                                 release ? nb::object(nb::str(release)) : nb::none();
                         }
                         return packings;
                     },
                     nb::sig("def packings(self) -> dict[str, str | None]"),
                     "Packings, each with the engine release that it was compared with.")
        .def("explain", explain, "model"_a, "packing"_a = "hf",
             nb::sig("def explain(self, model: Model, packing: str = 'hf') -> list[tuple[str, str, "
                     "str]]"),
             "Return how the rules treat each tensor of a model: its name, the verdict "
             "(\"matched\", \"skipped\", \"unmatched\", \"undecided\" without a config.json, or "
             "\"incomplete\"), and the rule or the reason.")
        .def_static("files",
                    [] {
                        nb::dict files;
                        for (size_t i = 0; i < banyan_rules_file_count(); i++)
                            files[banyan_rules_file_name(i)] = banyan_rules_file_text(i);
                        return files;
                    },
                    nb::sig("def files() -> dict[str, str]"),
                    "Return the built-in rule files: names and texts.");
}

/* ---- cases of Megatron-Core ---- */

struct MegatronTransfer {
    uint64_t task_id;
    int source_rank, destination_rank;
    std::string source_name, destination_name;
    Box source_slice, destination_slice;
};

static std::vector<MegatronTransfer> transfers_of(const MegatronCase &c)
{
    std::vector<MegatronTransfer> transfers;
    for (size_t i = 0; i < banyan_megatron_case_transfer_count(c.handle); i++) {
        const banyan_megatron_transfer *t = banyan_megatron_case_transfer(c.handle, i);
        transfers.push_back({t->task_id,
                             t->source_rank,
                             t->destination_rank,
                             t->source_name,
                             t->destination_name,
                             {t->source_slice},
                             {t->destination_slice}});
    }
    return transfers;
}

static void bind_cases(nb::module_ &m)
{
    nb::class_<MegatronTransfer>(m, "MegatronTransfer", "A transfer of Megatron-Core's planner.")
        .def_ro("task_id", &MegatronTransfer::task_id, "Number that Megatron-Core gives it.")
        .def_ro("source_rank", &MegatronTransfer::source_rank, "Rank that sends.")
        .def_ro("destination_rank", &MegatronTransfer::destination_rank, "Rank that receives.")
        .def_ro("source_name", &MegatronTransfer::source_name, "Local tensor of the sender.")
        .def_ro("destination_name", &MegatronTransfer::destination_name,
                "Local tensor of the receiver.")
        .def_ro("source_slice", &MegatronTransfer::source_slice, "Box of the sender's tensor.")
        .def_ro("destination_slice", &MegatronTransfer::destination_slice,
                "Box of the receiver's tensor.");
    nb::class_<MegatronCase>(
        m, "MegatronCase",
        "A test case for planners: the tensors of each rank on both sides, in Megatron-Core's "
        "terms, and the transfers of Megatron-Core's planner.")
        .def("__init__",
             [](MegatronCase *self, nb::object path) {
                 new (self) MegatronCase;
                 std::string name = path_of(path);
                 work([&] { return banyan_megatron_case_load(name.c_str(), &self->handle); });
             },
             "path"_a, nb::sig("def __init__(self, path: banyan.PathLike) -> None"),
             "Load a case. ``Layout.add_case`` makes layouts of it.")
        .def_prop_ro("name",
                     [](const MegatronCase &c) { return banyan_megatron_case_name(c.handle); },
                     "Name of the case.")
        .def_prop_ro("world_size",
                     [](const MegatronCase &c) { return banyan_megatron_case_world_size(c.handle); },
                     "Number of ranks.")
        .def_prop_ro("transfers", transfers_of, "Transfers, as a new list.");
}

void bind_layout(nb::module_ &m)
{
    bind_boxes(m);
    bind_meshes(m);
    bind_files(m);
    bind_rules(m);
    bind_cases(m);
    bind_layout_class(m);
}
