// SPDX-License-Identifier: Apache-2.0

// Package layout holds tests of the source tree itself: the sizes of packages and files, and their names.
package layout
