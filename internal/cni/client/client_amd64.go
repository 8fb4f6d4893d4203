// SPDX-License-Identifier: Apache-2.0

package client

import _ "embed"

//go:embed client_amd64
var program []byte
