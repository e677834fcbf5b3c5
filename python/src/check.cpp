/* Reports of the checker. */
#include "banyan_plan.h"

struct Report {
    banyan_check_report *handle = nullptr;
    std::string plan_name;

    Report() = default;
    Report(const Report &) = delete;
    ~Report() { banyan_check_report_destroy(handle); }
};

/* A finding and a place live as long as the report. */
struct Finding {
    std::shared_ptr<Report> report;
    const banyan_check_finding *f;
};

struct Place {
    std::shared_ptr<Report> report;
    const banyan_check_place *p;
};

static std::vector<uint64_t> sizes_of(nb::handle nbytes)
{
    if (nbytes.is_none())
        return {};
    if (nb::isinstance<nb::int_>(nbytes))
        return {nb::cast<uint64_t>(nbytes)};
    return nb::cast<std::vector<uint64_t>>(nb::list(nbytes));
}

static std::shared_ptr<Report> check_plan(const Plan &plan, nb::handle nbytes, size_t max_findings,
                                          bool warnings, uint64_t max_memory_bytes,
                                          uint64_t max_steps, const std::string &executor)
{
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    std::vector<uint64_t> sizes = sizes_of(nbytes);
    if (!nbytes.is_none() && sizes.empty())
        throw nb::value_error("nbytes: an empty list of sizes");
    options.message_bytes = nbytes.is_none() ? nullptr : sizes.data();
    options.message_count = sizes.size();
    options.max_findings = max_findings;
    options.warnings = warnings;
    options.max_memory_bytes = max_memory_bytes;
    options.max_steps = max_steps;
    check(banyan_plan_executor_parse(executor.c_str(), &options.executor));
    auto report = std::make_shared<Report>();
    report->plan_name = banyan_plan_describe(plan.handle).name;
    work([&] { return banyan_plan_check(plan.handle, &options, &report->handle); });
    return report;
}

void def_check(nb::class_<Plan> &plan)
{
    plan.def(
        "check", check_plan, "nbytes"_a = nb::none(), nb::kw_only(), "max_findings"_a = 100,
        "warnings"_a = true, "max_memory_bytes"_a = uint64_t(2) << 30,
        "max_steps"_a = uint64_t(1) << 20, "executor"_a = "banyan",
        nb::sig("def check(self, nbytes: int | collections.abc.Sequence[int] | None = None, *, "
                "max_findings: int = 100, warnings: bool = True, max_memory_bytes: int = "
                "2147483648, max_steps: int = 1048576, executor: str = 'banyan') -> CheckReport"),
        "Prove that the plan is sound, or report each fault and its place.\n\n"
        "``nbytes``: examine these sizes; None: one of every class in which the plan behaves "
        "differently. ``max_findings``: of each rule. ``max_steps``: of the loops of all "
        "sizes together. ``executor``: \"banyan\", or \"mscclpp\" to prove by the rules of "
        "MSCCL++'s executor.");
}

static nb::str print_report(const Report &report, bool json)
{
    char *text = nullptr;
    check(banyan_check_report_print(report.handle, report.plan_name.c_str(), json, &text));
    return take_text(text);
}

static std::vector<Finding> findings_of(std::shared_ptr<Report> report)
{
    std::vector<Finding> findings;
    for (size_t i = 0; i < banyan_check_report_count(report->handle); i++)
        findings.push_back({report, banyan_check_report_finding(report->handle, i)});
    return findings;
}

static std::vector<Place> places_of(const Finding &finding)
{
    std::vector<Place> places;
    for (size_t i = 0; i < finding.f->place_count; i++)
        places.push_back({finding.report, &finding.f->places[i]});
    return places;
}

static std::string text_of(const Place &place)
{
    const banyan_check_place &p = *place.p;
    std::string text = "rank " + std::to_string(p.rank);
    if (p.thread_block >= 0)
        text += ", thread block " + std::to_string(p.thread_block);
    if (p.operation >= 0)
        text += ", operation " + std::to_string(p.operation);
    if (p.file)
        text += " (" + std::string(p.file) + ":" + std::to_string(p.line) + ")";
    return text;
}

void bind_check(nb::module_ &m)
{
    nb::class_<Place>(m, "CheckPlace", "An operation of a plan, in a finding.")
        .def_prop_ro(
            "rank", [](const Place &p) { return p.p->rank; }, "Rank that executes the operation.")
        .def_prop_ro(
            "thread_block", [](const Place &p) { return p.p->thread_block; },
            "-1: an access by the rank's caller, or the whole rank.")
        .def_prop_ro(
            "operation", [](const Place &p) { return p.p->operation; },
            "Index in the thread block, or -1.")
        .def_prop_ro(
            "loop_operation", [](const Place &p) { return p.p->loop_operation; },
            "Index in the loop's body, or -1.")
        .def_prop_ro(
            "run", [](const Place &p) { return p.p->run; },
            "0: this run, 1: the next run, and so on.")
        .def_prop_ro(
            "file",
            [](const Place &p) -> std::optional<std::string> {
                return p.p->file ? std::optional<std::string>(p.p->file) : std::nullopt;
            },
            nb::sig("def file(self) -> str | None"),
            "Source file of the program that asked for the operation, if the plan has it.")
        .def_prop_ro(
            "line", [](const Place &p) { return p.p->line; }, "Line in ``file``.")
        .def("__repr__", [](const Place &p) { return "<" + text_of(p) + ">"; });
    nb::class_<Finding>(m, "CheckFinding", "A violation of a rule of the checker.")
        .def_prop_ro(
            "rule", [](const Finding &f) { return banyan_check_rule_name(f.f->rule); },
            "Name of the rule, for example \"deadlock\" or \"race\".")
        .def_prop_ro(
            "is_warning", [](const Finding &f) { return banyan_check_rule_is_warning(f.f->rule); },
            "True if the finding does not make the plan unsound.")
        .def_prop_ro(
            "message", [](const Finding &f) { return f.f->message; }, "Explanation, with a remedy.")
        .def_prop_ro(
            "nbytes", [](const Finding &f) { return f.f->message_bytes; },
            "Smallest examined size with this finding.")
        .def_prop_ro("places", places_of, nb::sig("def places(self) -> list[CheckPlace]"),
                     "The operations involved, the first one first.")
        .def_prop_ro(
            "caller_only", [](const Finding &f) { return f.f->caller_only; },
            "It does not occur if the callers synchronize all ranks between runs.")
        .def_prop_ro(
            "relaxed_only", [](const Finding &f) { return f.f->relaxed_only; },
            "A full signal and wait instead of relaxed ones or packets would prevent it.")
        .def_prop_ro(
            "like", [](const Finding &f) { return f.f->like; },
            "Index of the first finding with the same rule and operations, perhaps on "
            "other ranks.")
        .def_prop_ro(
            "cause", [](const Finding &f) { return f.f->cause; },
            "Index of a finding without which this one would probably not be there, or "
            "its own.")
        .def("__repr__", [](const Finding &f) {
            return "<" + std::string(banyan_check_rule_name(f.f->rule)) + ": " + f.f->message + ">";
        });
    nb::class_<Report>(m, "CheckReport", "Findings of ``Plan.check``.")
        .def_prop_ro(
            "is_sound", [](const Report &r) { return banyan_check_report_is_sound(r.handle); },
            "True if there is no finding, or only warnings.")
        .def_prop_ro("findings", findings_of, nb::sig("def findings(self) -> list[CheckFinding]"),
                     "Findings in the order of rule, place and bytes.")
        .def_prop_ro(
            "limits", [](const Report &r) { return banyan_check_report_limits(r.handle); },
            "Text that states what the check did not decide, or \"\".")
        .def(
            "json", [](const Report &r) { return print_report(r, true); },
            nb::sig("def json(self) -> str"), "Return the findings as JSON text.")
        .def(
            "__str__", [](const Report &r) { return print_report(r, false); },
            nb::sig("def __str__(self) -> str"), "Return the findings as text for people.")
        .def("__repr__", [](const Report &r) {
            return "<banyan.CheckReport of \"" + r.plan_name +
                   "\": " + (banyan_check_report_is_sound(r.handle) ? "sound" : "not sound") +
                   ", " + std::to_string(banyan_check_report_count(r.handle)) + " findings>";
        });
}
