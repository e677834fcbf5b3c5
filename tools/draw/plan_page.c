/* The page of `banyan plan view`: a compiled-in page with its data. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "draw/picture.h"
#include "draw/plan_view.h"

/* Placeholder of the data in the page. */
#define MARK "/*DATA*/null"

/* Write JSON into a script: text that could end the script can only be in a string. */
static void write_json(FILE *file, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            fputs("\\u003c", file);
        else
            fputc(*text, file);
    }
}

static void plan_page_write_text(FILE *file, const char *text)
{
    json_t *string = text ? json_string(text) : json_null();
    char *printed = json_dumps(string, JSON_ENCODE_ANY);
    write_json(file, printed ? printed : "null");
    free(printed);
    json_decref(string);
}

static void write_findings(FILE *file, const banyan_check_report *report)
{
    for (size_t i = 0; report && i < banyan_check_report_count(report); i++) {
        const banyan_check_finding *finding = banyan_check_report_finding(report, i);
        fprintf(file, "%s\n{\"rule\": \"%s\", \"warning\": %s, \"message\": ", i > 0 ? "," : "",
                banyan_check_rule_name(finding->rule),
                banyan_check_rule_is_warning(finding->rule) ? "true" : "false");
        plan_page_write_text(file, finding->message);
        fprintf(file, ", \"places\": [");
        for (size_t p = 0; p < finding->place_count; p++) {
            const banyan_check_place *place = &finding->places[p];
            fprintf(file, "%s[%d,%d,%d,%d]", p > 0 ? "," : "", place->rank, place->thread_block,
                    place->operation, place->loop_operation);
        }
        fprintf(file, "]}");
    }
}

static void write_families(FILE *file)
{
    for (const picture_family *family = picture_families; family->name; family++)
        fprintf(file, "%s{\"name\": \"%s\", \"colour\": \"%s\", \"dark\": %s}",
                family == picture_families ? "" : ", ", family->name, family->colour,
                family->dark ? "true" : "false");
}

static void write_lanes(FILE *file, const picture *of)
{
    static const char *const names[] = {[PICTURE_RANK] = "rank",
                                        [PICTURE_BLOCK] = "block",
                                        [PICTURE_PROXY] = "proxy",
                                        [PICTURE_BUFFERS] = "buffers"};
    for (size_t i = 0; i < of->lane_count; i++)
        fprintf(file, "%s[\"%s\",%d,%d]", i > 0 ? "," : "", names[of->lanes[i].kind],
                of->lanes[i].rank, of->lanes[i].thread_block);
}

static void write_arrows(FILE *file, const picture *of)
{
    static const char *const names[] = {[PICTURE_SIGNAL] = "signal",
                                        [PICTURE_PACKETS] = "packets",
                                        [PICTURE_PUT] = "put",
                                        [PICTURE_GET] = "get"};
    for (size_t i = 0; i < of->arrow_count; i++)
        fprintf(file, "%s[\"%s\",%zu,%zu]", i > 0 ? "," : "", names[of->arrows[i].kind],
                of->arrows[i].from, of->arrows[i].to);
}

static void write_operands(FILE *file, const picture *of, const picture_step *step, bool sources)
{
    size_t count = picture_operand_count(picture_op_of(of, step), sources);
    for (size_t i = 0; i < count; i++) {
        picture_operand operand = picture_operand_at(of, step, sources, i);
        fprintf(file, "%s[[", i > 0 ? "," : "");
        size_t k;
        json_t *rank;
        if (!operand.ranks)
            fprintf(file, "%d", operand.rank);
        json_array_foreach(operand.ranks, k, rank)
            fprintf(file, "%s%d", k > 0 ? "," : "", (int)picture_number(rank));
        fprintf(file, "],\"%c\",%" PRIu64 ",%" PRIu64 "]", operand.buffer, operand.index,
                operand.size);
    }
}

/* "in ring.c:42", if the plan has the line of the program. */
static void print_line(FILE *to, const picture *of, const picture_step *step)
{
    const json_t *lines = json_object_get(json_object_get(of->root, "banyan"), "lines");
    uint64_t number = picture_number(json_object_get(picture_op_of(of, step), "line"));
    const json_t *line = number > 0 ? json_array_get(lines, (size_t)number - 1) : NULL;
    if (line)
        fprintf(to, "in %s:%" PRIu64 "\n", json_string_value(json_array_get(line, 0)),
                picture_number(json_array_get(line, 1)));
}

static void write_about(FILE *file, const picture *of, const picture_step *step)
{
    char *text = NULL;
    size_t bytes;
    FILE *lines = open_memstream(&text, &bytes);
    if (!lines)
        return;
    picture_op_print_about(lines, of, step);
    print_line(lines, of, step);
    fclose(lines);
    plan_page_write_text(file, text);
    free(text);
}

/* Write each operation once, by its place: the properties that its steps share. */
static void write_operation(FILE *file, const picture *of, const picture_step *step)
{
    fprintf(file, "\n\"%d/%d/%d/%d\": {\"name\": ", step->rank, step->thread_block, step->operation,
            step->loop_operation);
    plan_page_write_text(file, picture_op_name(of, step));
    fprintf(file,
            ", \"family\": %d, \"about\": ", (int)(picture_op_family(of, step) - picture_families));
    write_about(file, of, step);
    fprintf(file, ", \"reads\": [");
    write_operands(file, of, step, true);
    fprintf(file, "], \"writes\": [");
    write_operands(file, of, step, false);
    bool shared = json_object_get(picture_op_of(of, step), "tbg_info") != NULL;
    fprintf(file, "], \"shared\": %s}", shared ? "true" : "false");
}

static int plan_page_compare_places(const void *a, const void *b)
{
    const picture_step *first = *(const picture_step *const *)a;
    const picture_step *second = *(const picture_step *const *)b;
    const int left[] = {first->rank, first->thread_block, first->operation, first->loop_operation};
    const int right[] = {second->rank, second->thread_block, second->operation,
                         second->loop_operation};
    for (int i = 0; i < 4; i++) {
        if (left[i] != right[i])
            return left[i] < right[i] ? -1 : 1;
    }
    return 0;
}

static banyan_status write_operations(FILE *file, const picture *of)
{
    const picture_step **steps = malloc(of->step_count * sizeof *steps);
    if (!steps)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: a page");
    for (size_t i = 0; i < of->step_count; i++)
        steps[i] = &of->steps[i];
    qsort(steps, of->step_count, sizeof *steps, plan_page_compare_places);
    for (size_t i = 0; i < of->step_count; i++) {
        if (i > 0 && plan_page_compare_places(&steps[i - 1], &steps[i]) == 0)
            continue;
        fputs(i > 0 ? "," : "", file);
        write_operation(file, of, steps[i]);
    }
    free(steps);
    return BANYAN_OK;
}

static void write_steps(FILE *file, const picture *of)
{
    for (size_t i = 0; i < of->step_count; i++) {
        const picture_step *step = &of->steps[i];
        fprintf(file, "%s\n[%d,%d,%d,%d,%d,%" PRIu64 ",%.9g,%.9g,", i > 0 ? "," : "", step->rank,
                step->thread_block, step->proxy, step->operation, step->loop_operation,
                step->iteration, step->began_s, step->ended_s);
        if (step->after == PICTURE_NONE)
            fprintf(file, "-1,%zu]", step->lane);
        else
            fprintf(file, "%zu,%zu]", step->after, step->lane);
    }
}

static banyan_status write_data(FILE *file, const plan_view *view)
{
    char *plan;
    size_t bytes;
    const picture *of = &view->picture;
    RETURN_IF_FAILED(banyan_plan_print(view->plan, &plan, &bytes));
    fprintf(file, "{\"message_bytes\": %" PRIu64 ", \"topology\": ", view->message_bytes);
    plan_page_write_text(file, view->topology);
    fprintf(file, ", \"trace\": ");
    plan_page_write_text(file, view->trace);
    fprintf(file, ", \"hang\": ");
    plan_page_write_text(file, view->hang);
    fprintf(file, ",\n\"plan\": ");
    write_json(file, plan);
    free(plan);
    fprintf(file, ",\n\"checked\": %s, \"findings\": [", view->report ? "true" : "false");
    write_findings(file, view->report);
    fprintf(file, "],\n\"families\": [");
    write_families(file);
    fprintf(file, "],\n\"lanes\": [");
    write_lanes(file, of);
    fprintf(file, "],\n\"operations\": {");
    RETURN_IF_FAILED(write_operations(file, of));
    fprintf(file, "},\n\"arrows\": [");
    write_arrows(file, of);
    fprintf(file, "],\n\"steps\": [");
    write_steps(file, of);
    fprintf(file, "]}");
    return BANYAN_OK;
}

banyan_status plan_page_print(FILE *to, const plan_view *view)
{
    const char *html = pages[0].text, *mark = strstr(html, MARK);
    fwrite(html, 1, (size_t)(mark - html), to);
    RETURN_IF_FAILED(write_data(to, view));
    fputs(mark + strlen(MARK), to);
    return BANYAN_OK;
}
