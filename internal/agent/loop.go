// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"time"
)

// After an error a loop compares all again: after firstRetry, and after each further error twice as late.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

type loop struct {
	changed, disturbed <-chan struct{}
	every, pause       time.Duration // between rounds that compare all, and between any
	// round writes what has changed, or compares all, and reports whether it has compared all.
	round func(all bool) (bool, error)
	log   *slog.Logger
	// failed is the log message of an error, again the message once all has been compared without an error.
	failed, again string
}

func (l loop) run(ctx context.Context) {
	next := time.NewTimer(l.every)
	defer next.Stop()
	logged, retry, due := "", firstRetry, false // due: all is compared again after an error
	for all := true; ctx.Err() == nil; {
		compared, err := l.round(all)
		switch {
		case err == nil && compared:
			if logged != "" {
				l.log.Info(l.again)
			}
			logged, retry, due = "", firstRetry, false
			next.Reset(l.every)
		case err != nil && !due && ctx.Err() == nil: // changes that fail too do not put it off, nor fill the log
			if now := err.Error(); now != logged {
				logged = now
				l.log.Error(l.failed, "error", err, "again", retry)
			}
			due = true
			next.Reset(retry)
			retry = min(2*retry, lastRetry)
		}
		select {
		case <-ctx.Done():
		case <-time.After(l.pause):
		}
		all = false
		select {
		case <-ctx.Done():
		case <-next.C:
			all, due = true, false
		case <-l.changed:
		case <-l.disturbed:
		}
	}
}
