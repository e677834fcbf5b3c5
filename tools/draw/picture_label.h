/* Short words for narrow blocks. */
#ifndef TOOLS_PICTURE_LABEL_H
#define TOOLS_PICTURE_LABEL_H

#include "draw/picture.h"

/* Return the text under an operation's name, "i0→s1@2": all of it, its destination, or NULL,
 * whichever fits. To be freed. */
char *picture_label_detail(const picture *of, const picture_step *step, double room,
                           double font_size);

#endif
