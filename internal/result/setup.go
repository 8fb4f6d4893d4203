// SPDX-License-Identifier: Apache-2.0

package result

import (
	"fmt"
	"strings"
)

// Setup says how a workload is driven, where that is not the usual way. It is part of the
// identity of a row.
type Setup struct {
	// RequestBytes and ResponseBytes are the sizes of a request and of a response; 0 means
	// the workload's usual ones.
	RequestBytes  int `json:"request_bytes,omitempty"`
	ResponseBytes int `json:"response_bytes,omitempty"`
	// Reverse says that the server sends the stream.
	Reverse bool `json:"reverse,omitempty"`
	// Rate, if not 0, is the number of requests that the client sends in a second, whether
	// or not responses come in time. LoadShare is the same as a share of the row's own rate
	// without a pause. The row's figures are then latencies, from the time at which a
	// request was due.
	Rate      int     `json:"rate,omitempty"`
	LoadShare float64 `json:"load_share,omitempty"`
}

// Paced reports whether requests are sent at a rate.
func (s Setup) Paced() bool { return s.Rate > 0 || s.LoadShare > 0 }

// String describes the setup, such as "reverse" or "1000-byte requests, 50 % load". It is
// empty for the usual one.
func (s Setup) String() string {
	var parts []string
	if s.RequestBytes > 0 {
		parts = append(parts, fmt.Sprintf("%d-byte requests", s.RequestBytes))
	}
	if s.ResponseBytes > 0 {
		parts = append(parts, fmt.Sprintf("%d-byte responses", s.ResponseBytes))
	}
	if s.Reverse {
		parts = append(parts, "reverse")
	}
	if s.Rate > 0 {
		parts = append(parts, fmt.Sprintf("%d/s", s.Rate))
	}
	if s.LoadShare > 0 {
		parts = append(parts, fmt.Sprintf("%.3g%% load", s.LoadShare*100))
	}
	return strings.Join(parts, ", ")
}

// Title names the key's workload with its flows and its setup.
func (k Key) Title() string {
	title := k.Workload
	if k.Flows > 1 {
		title += fmt.Sprintf(", %d flows", k.Flows)
	}
	if setup := k.Setup.String(); setup != "" {
		title += ", " + setup
	}
	return title
}
