/* Banyan: include every public header. Start reading at core.h, which states the conventions.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_BANYAN_H
#define BANYAN_BANYAN_H

#include <banyan/check.h>
#include <banyan/checkpoint.h>
#include <banyan/collective.h>
#include <banyan/connect.h>
#include <banyan/copy.h>
#include <banyan/core.h>
#include <banyan/execute.h>
#include <banyan/forecast.h>
#include <banyan/layout.h>
#include <banyan/memory.h>
#include <banyan/mixed.h>
#include <banyan/pipeline.h>
#include <banyan/plan.h>
#include <banyan/program.h>
#include <banyan/publish.h>
#include <banyan/reshard.h>
#include <banyan/rules.h>
#include <banyan/simulate.h>
#include <banyan/transform.h>
#include <banyan/transport.h>
#include <banyan/world.h>

#endif
