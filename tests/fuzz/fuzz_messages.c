/* Messages that ranks send each other about themselves and their pieces: joins, failures to join
 * and tables of members, requests to connect, records of the planner, places of tensors, batches of
 * the pipeline; and ids of jobs and addresses of listeners, which a program carries. The first byte
 * chooses which. */
#include "fuzz.h"

#include "copy/direct/place.h"
#include "copy/schedule/exchange.h"
#include "reshard/layout/box.h"
#include "reshard/planner/record.h"
#include "world/bootstrap/rendezvous.h"
#include "world/bootstrap/tree.h"
#include "world/connect/message.h"

enum {
    JOIN,
    TABLE,
    RECORD,
    PLACE,
    FLOW,
    FAILURE,
    ID,
    REQUEST,
    PARTY,
    LISTENER,
    READY,
    LEFT,
    REDIRECT,
    KINDS
};
enum { WORLD = 3, TASKS = 4, SLOT_BYTES = 256 };

static void seed_of(uint8_t kind, bytes_writer *message)
{
    uint8_t *seed = malloc(message->count + 1);
    FUZZ_REQUIRE(!message->failed);
    seed[0] = kind;
    memcpy(seed + 1, message->data, message->count);
    fuzz_seed(seed, message->count + 1);
    free(seed);
    bytes_writer_free(message);
    *message = (bytes_writer){0};
}

/* Enough for two slots and a bit, tasks of all sizes among them. */
static const pipeline_task tasks[TASKS] = {{100, 4}, {1, 2}, {0, 4}, {90, 2}};

static pipeline_flow some_flow(void)
{
    return (pipeline_flow){.peer = 1, .tasks = tasks, .task_count = TASKS};
}

static void seed_members(void)
{
    bytes_writer message = {0};
    struct join_request request = {.rank = 1, .world_size = WORLD, .timeout_ns = 1};
    strcpy(request.self.node, "node");
    strcpy(request.self.host, "host");
    request.self.pid = 7;
    join_write(&message, &request);
    seed_of(JOIN, &message);
    error_kept why = {.status = BANYAN_ERR_NO_MEMORY, .message = "out of memory"};
    join_write(&message, &request);
    failure_write(&message, &why);
    seed_of(FAILURE, &message);
    table_write(&message, WORLD);
    for (int rank = 0; rank < WORLD; rank++)
        member_write(&message, &request.self);
    seed_of(TABLE, &message);
}

static void seed_records(void)
{
    bytes_writer message = {0};
    planner_record record = {.dtype = BANYAN_BF16, .ndim = 2, .shape = {64, 32}, .wanted = "w"};
    record.box = (banyan_box){2, {8, 0}, {8, 32}};
    planner_record_write(&message, &record);
    seed_of(RECORD, &message);
    record = (planner_record){
        .dtype = BANYAN_F32, .ndim = 1, .shape = {99}, .is_note = true, .level = 3};
    planner_record_write(&message, &record);
    seed_of(RECORD, &message);
}

static void seed_id(void)
{
    bytes_writer message = {0};
    banyan_unique_id id;
    struct rendezvous_place place;
    int tcp_fd;
    FUZZ_REQUIRE(rendezvous_place_new("node", &place, &id, &tcp_fd) == BANYAN_OK);
    if (tcp_fd >= 0)
        close(tcp_fd);
    bytes_write(&message, &id, sizeof id);
    seed_of(ID, &message);
}

static void seed_tree(void)
{
    bytes_writer message = {0};
    for (int rank = 0; rank < WORLD; rank++)
        ready_write(&message, rank);
    seed_of(READY, &message);
    loss_write(&message, &(struct member_loss){1, true});
    loss_write(&message, &(struct member_loss){2, false});
    seed_of(LEFT, &message);
    struct address to[] = {address_loopback(4711), address_unix("banyan-name")};
    for (int i = 0; i < 2; i++) {
        bytes_write(&message, &to[i].socket, to[i].bytes);
        seed_of(REDIRECT, &message);
    }
}

static void seed_connections(void)
{
    bytes_writer message = {0};
    struct connect_request request = {.name = "weights", .party = {2, 7, "host"}};
    snprintf(request.version, sizeof request.version, "%s", banyan_version());
    connect_request_write(&message, &request);
    seed_of(REQUEST, &message);
    connect_party_write(&message, &request.party);
    seed_of(PARTY, &message);
    static const char *const addresses[] = {"10.0.0.5:4711", "[2001:db8::5]:4711", ":0"};
    for (int i = 0; i < 3; i++) {
        bytes_write(&message, addresses[i], strlen(addresses[i]));
        seed_of(LISTENER, &message);
    }
}

void fuzz_write_seeds(void)
{
    seed_members();
    seed_tree();
    seed_connections();
    seed_id();
    seed_records();
    bytes_writer message = {0};
    int64_t shape[2] = {4, 6}, strides[2] = {8, 1};
    DLTensor tensor = {.data = (void *)64, .device = {kDLCPU, 0}, .ndim = 2, .dtype = BANYAN_F32};
    tensor.shape = shape;
    tensor.strides = strides;
    direct_place place = {.handle = {.rank = 1, .kind = 1, .bytes = 4096}, .offset = 64};
    FUZZ_REQUIRE(strided_view_of(&tensor, &place.view) == BANYAN_OK);
    direct_place_write(&place, &message);
    seed_of(PLACE, &message);
    pipeline_flow flow = some_flow();
    FUZZ_REQUIRE(pipeline_batch_pack(tasks, TASKS, SLOT_BYTES, &flow.batches) == BANYAN_OK);
    pipeline_flow_write(&flow, &message);
    seed_of(FLOW, &message);
    pipeline_flow_free(&flow);
}

static void try_members(uint8_t kind, const uint8_t *data, size_t size)
{
    struct join_request request;
    struct member_table table;
    if (kind == JOIN && join_read(data, size, &request)) {
        FUZZ_REQUIRE(memchr(request.self.node, 0, sizeof request.self.node));
        FUZZ_REQUIRE(memchr(request.self.host, 0, sizeof request.self.host));
    }
    error_kept why;
    if (kind == FAILURE && failure_read(data, size, &request, &why))
        FUZZ_REQUIRE(why.status != BANYAN_OK && memchr(why.message, 0, sizeof why.message));
    if (kind == TABLE && fuzz_took(table_read(data, size, WORLD, &table))) {
        for (int rank = 0; rank < WORLD; rank++)
            FUZZ_REQUIRE(table.members[rank].tcp.bytes == 0 ||
                         address_is_ip(&table.members[rank].tcp));
        free(table.members);
    }
}

static void try_id(const uint8_t *data, size_t size)
{
    banyan_unique_id id;
    struct rendezvous_place place;
    if (size != sizeof id)
        return;
    memcpy(&id, data, sizeof id);
    if (!fuzz_took(rendezvous_place_of_id(&id, "node", &place)))
        return;
    FUZZ_REQUIRE(memchr(place.name, 0, sizeof place.name));
    FUZZ_REQUIRE(place.address_count >= 0 && place.address_count <= RENDEZVOUS_ADDRESSES);
}

static void try_tree(uint8_t kind, const uint8_t *data, size_t size)
{
    bytes_reader reader = bytes_reader_of(data, size);
    struct member_loss loss = {0};
    struct address address;
    char text[ADDRESS_TEXT_BYTES];
    while (kind == READY ? ready_read(&reader, WORLD, &loss.rank)
                         : loss_read(&reader, WORLD, &loss))
        FUZZ_REQUIRE(loss.rank >= 0 && loss.rank < WORLD);
    FUZZ_REQUIRE(reader.failed || reader.left == 0);
    if (kind == REDIRECT && tree_read_redirect(data, size, &address) && address.bytes > 0) {
        FUZZ_REQUIRE(address_is_ip(&address) || address_is_unix(&address));
        (void)address_text(&address, text);
    }
}

static void require_party(const struct connect_party *party)
{
    FUZZ_REQUIRE(party->size >= 1 && party->size <= BANYAN_MAX_RANKS && party->pid >= 0);
    FUZZ_REQUIRE(memchr(party->host, 0, sizeof party->host));
}

/* An accepted message is written again as it was. */
static void require_same(bytes_writer *again, const uint8_t *data, size_t size)
{
    FUZZ_REQUIRE(!again->failed && again->count == size && memcmp(again->data, data, size) == 0);
    bytes_writer_free(again);
}

static void try_request(const uint8_t *data, size_t size)
{
    struct connect_request request;
    bytes_writer again = {0};
    if (!fuzz_took(connect_request_read(data, size, &request)))
        return;
    require_party(&request.party);
    connect_request_write(&again, &request);
    require_same(&again, data, size);
}

static void try_party(const uint8_t *data, size_t size)
{
    struct connect_party party;
    bytes_writer again = {0};
    if (!connect_party_read(data, size, &party))
        return;
    require_party(&party);
    connect_party_write(&again, &party);
    require_same(&again, data, size);
}

static void try_listener(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size), host[CONNECT_HOST_BYTES];
    int port;
    if (fuzz_took(connect_split_address(text, host, &port))) {
        FUZZ_REQUIRE(memchr(host, 0, sizeof host) && strstr(text, host));
        FUZZ_REQUIRE(port >= 0 && port <= UINT16_MAX);
    }
    free(text);
}

static void try_record(const uint8_t *data, size_t size)
{
    planner_record record;
    if (!fuzz_took(planner_record_read("key", data, size, &record)))
        return;
    FUZZ_REQUIRE(record.ndim >= 0 && record.ndim <= BANYAN_MAX_DIMS);
    if (!record.is_note)
        FUZZ_REQUIRE(box_fits(&record.box, record.ndim, record.shape));
    bytes_writer again = {0};
    planner_record_write(&again, &record);
    FUZZ_REQUIRE(!again.failed && again.count <= size);
    bytes_writer_free(&again);
}

/* A place's addresses must lie in its handle; only the owner of memory of kind 0 can access it. */
static void try_place(const uint8_t *data, size_t size)
{
    direct_place place;
    if (!fuzz_took(direct_place_read(data, size, 1, 24, 4, &place)) || place.handle.kind == 0)
        return;
    __int128 low = place.offset, high = low + 4;
    for (int d = 0; d < place.view.ndim; d++) {
        __int128 reach = (__int128)(place.view.extent[d] - 1) * place.view.stride[d];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    FUZZ_REQUIRE(low >= 0 && high <= (__int128)place.handle.bytes);
}

/* Accepted batches contain every element of every task once, inside their slots. */
static void try_flow(const uint8_t *data, size_t size)
{
    pipeline_flow flow = some_flow();
    if (!fuzz_took(pipeline_flow_read(0, data, size, SLOT_BYTES, &flow)))
        return;
    uint64_t elems[TASKS] = {0};
    for (size_t i = 0; i < flow.batches.segments.count; i++) {
        const pipeline_segment *segment = &flow.batches.segments.data[i];
        FUZZ_REQUIRE(segment->task < TASKS && segment->first_elem == elems[segment->task]);
        elems[segment->task] += segment->elem_count;
        uint64_t bytes = segment->elem_count * tasks[segment->task].elem_bytes;
        FUZZ_REQUIRE(segment->slot_offset + bytes <= SLOT_BYTES);
    }
    for (size_t t = 0; t < TASKS; t++)
        FUZZ_REQUIRE(elems[t] == tasks[t].elems);
    pipeline_flow_free(&flow);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    uint8_t kind = data[0] % KINDS;
    /* Use a separate allocation at any alignment, so that a read beyond the end is detected. */
    uint8_t *message = malloc(size - 1);
    if (size > 1)
        memcpy(message, data + 1, size - 1);
    if (kind == RECORD)
        try_record(message, size - 1);
    else if (kind == PLACE)
        try_place(message, size - 1);
    else if (kind == FLOW)
        try_flow(message, size - 1);
    else if (kind == ID)
        try_id(message, size - 1);
    else if (kind == READY || kind == LEFT || kind == REDIRECT)
        try_tree(kind, message, size - 1);
    else if (kind == REQUEST)
        try_request(message, size - 1);
    else if (kind == PARTY)
        try_party(message, size - 1);
    else if (kind == LISTENER)
        try_listener(message, size - 1);
    else
        try_members(kind, message, size - 1);
    free(message);
    return 0;
}
