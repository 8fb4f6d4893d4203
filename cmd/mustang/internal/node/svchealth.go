// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/service"
	"mustang/internal/service/health"
)

// followInterval is the pause between looks for changed services. A look opens the datapath and reads one row.
const followInterval = 500 * time.Millisecond

func (c commands) svcHealth() *cobra.Command {
	var addresses []netip.Addr
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Answer the health checks of load balancers, until a signal ends it",
		Long: `Answer HTTP requests at the health-check ports of all services, as kube-proxy does at a
healthCheckNodePort: 200 if an active backend of the service is on this node, or else 503. It
follows changes of the services, and listens on no other port. The unit mustang-health.service
runs it.`,
		Example: "  mustang svc health\n  mustang svc health --address=192.0.2.10 --address=2001:db8::10",
		RunE:    cli.AsRoot(func(ctx context.Context, _ []string) error { return c.answer(ctx, health.New(addresses...)) }),
	}
	cmd.Flags().Var(cli.Each(&addresses, netip.ParseAddr, "an IP address"), "address",
		"`IP` address to listen on; repeat for more; all by default")
	return cmd
}

// answer serves the services until ctx ends. It prints each failure of the server once, and tries again. The datapath
// may be created and removed meanwhile.
func (c commands) answer(ctx context.Context, server *health.Server) (err error) {
	defer func() { err = errors.Join(err, server.Close()) }()
	var services []service.Service
	var generation uint32 // of the services; 0: no datapath, or a change is under way
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	for printed := ""; ctx.Err() == nil; {
		now, exists := uint32(0), false
		err := c.Existing(nil, func(d *datapath.Datapath) (err error) {
			exists = true
			if now, err = d.Services().Generation(); err != nil || now == generation {
				return err
			}
			all, err := d.Services().List(ctx)
			services = slices.DeleteFunc(all, func(s service.Service) bool { return s.HealthCheckPort == 0 })
			return err
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) && ctx.Err() == nil {
			return err
		}
		if err != nil || !exists {
			services, now = nil, 0
		}
		generation = now
		text := ""
		if err := server.Apply(services, nil); err != nil {
			text = "mustang: " + strings.ReplaceAll(err.Error(), "\n", "\nmustang: ") + "\n"
		}
		if text != printed {
			fmt.Fprint(c.Stderr, text)
			printed = text
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}
