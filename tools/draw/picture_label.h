/* Short words for narrow blocks. */
#ifndef TOOLS_PICTURE_LABEL_H
#define TOOLS_PICTURE_LABEL_H

#include "draw/picture.h"

/* What goes under an operation's name, "i0→s1@2": all of it, or where it goes, or NULL, as there is
 * room. To be freed. */
char *picture_label_detail(const picture *of, const picture_step *step, double room,
                           double font_size);

#endif
