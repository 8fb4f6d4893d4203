// SPDX-License-Identifier: Apache-2.0

package client

import _ "embed"

//go:embed client_arm64
var program []byte
