// SPDX-License-Identifier: Apache-2.0

package install

import _ "embed"

//go:embed client_amd64
var clientProgram []byte
