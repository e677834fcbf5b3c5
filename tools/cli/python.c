#include "cli/python.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/options.h"

/* Run by Python: hand over to the package, or report that it is missing. */
static const char hand_over[] =
    "import importlib, sys\n"
    "sys.path = [path for path in sys.path if path]\n" /* without the current folder */
    "who, module = sys.argv[1:3]\n"
    "try:\n"
    "    main = importlib.import_module(module).main\n"
    "except ModuleNotFoundError as error:\n"
    "    if not (error.name or '').startswith('banyan'):\n"
    "        raise\n"
    "    print(who + ': the Python package banyan is not installed for ' + sys.executable +\n"
    "          ' (BANYAN_PYTHON or python3); pip install it, or activate its environment',\n"
    "          file=sys.stderr)\n"
    "    sys.exit(2)\n"
    "sys.exit(main(sys.argv[3:]))\n";

int python_become(const char *who, const char *module, const char *const *words)
{
    const char *all[PYTHON_MAX_WORDS + 6] = {python_name(), "-c", hand_over, who, module};
    int count = 5;
    for (int i = 0; words[i] && i < PYTHON_MAX_WORDS; i++)
        all[count++] = words[i];
    execvp(all[0], (char *const *)all);
    fprintf(stderr, "%s: cannot start %s: %s\n", who, all[0], strerror(errno));
    return EXIT_USAGE;
}
