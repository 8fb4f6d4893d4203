// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"mustang/internal/datapath/flows"
	"mustang/internal/service"
)

// inState fails the test unless there is one connection, in a state.
func (w *world) inState(t *testing.T, want flows.State) {
	t.Helper()
	list, err := w.Connections()
	if err != nil || len(list) != 1 || list[0].State != want || list[0].Protocol != service.Protocol(w.proto) {
		t.Fatalf("connections %v, %v; want one in state %v", list, err, want)
	}
}
