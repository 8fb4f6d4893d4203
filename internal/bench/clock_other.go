// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package bench

// loops are not written for this processor.
func loops() []loop { return nil }
