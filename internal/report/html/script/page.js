// SPDX-License-Identifier: Apache-2.0

// What the page can do beside being read.
import { enhance as enhanceGroups } from './groups.js';
import { enhance as enhanceMarks } from './marks.js';
import { enhance as enhanceParts } from './parts.js';
import { enhance as enhancePaths } from './paths.js';
import { enhance as enhancePicture } from './picture.js';
import { enhance as enhanceTable } from './tables.js';
import { enhance as enhanceVerdict } from './verdict.js';

document.querySelectorAll('.scroll > table').forEach(enhanceTable);
document.querySelectorAll('.suite').forEach(enhancePaths);
document.querySelectorAll('svg.chart').forEach(enhanceMarks);
document.querySelectorAll('figure').forEach(enhancePicture);
document.querySelectorAll('.suite').forEach(enhanceGroups);
document.querySelectorAll('.answers').forEach(enhanceVerdict);
enhanceParts();
