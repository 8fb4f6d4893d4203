// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"slices"
	"time"

	"mustang/internal/load"
)

// warmTime is how long a TCP stream carries load before its turns count. Without it, the
// first ten turns of a connection are up to a quarter faster or slower than later ones, each
// path in its own way.
const warmTime = 10 * time.Millisecond

// warmUp lets the streams carry load until the windows of both ends have grown.
func (e *epoch) warmUp(ctx context.Context) error {
	for _, s := range slices.Clone(e.standing) {
		if s.row.spec.workload.Name != load.TCPStream {
			continue
		}
		_, err := s.client.Slices(ctx, []load.Slice{{Conn: s.connection.ID, Lead: warmTime, Duration: s.row.slice}})
		if err == nil {
			continue
		}
		if err := e.drop(ctx, s, err); err != nil {
			return err
		}
	}
	return nil
}
