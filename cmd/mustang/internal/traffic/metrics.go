// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/agent/status"
)

func metricsCommand(config *cli.Config) *cobra.Command {
	var listen, file string
	var services uint
	cmd := &cobra.Command{
		Use:   "metrics",
		Short: "Export metrics for Prometheus",
		Long: `Print what Prometheus reads of the datapath: drops by reason, packets, connections by state, services and
pods. --textfile writes it to a file instead, as one, for node_exporter's textfile collector. --listen
answers at /metrics until Ctrl-C; ":PORT" is at 127.0.0.1. An agent has the same among its own metrics
(agent --metrics-address).`,
		Example: `  mustang metrics
  mustang metrics --textfile /var/lib/prometheus/node-exporter/mustang.prom
  mustang metrics --listen 127.0.0.1:9763 --services 20`,
		PreRunE: cli.Check(func([]string) error {
			if listen != "" && file != "" {
				return errors.New("--listen and --textfile: want one of them")
			}
			return nil
		}),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			registry := prometheus.NewRegistry()
			registry.MustRegister(Collector{Root: config.BPFRoot, Services: services})
			switch {
			case listen != "":
				return serve(ctx, config, listen, registry)
			case file != "":
				return writeTextfile(file, registry)
			}
			families, err := registry.Gather()
			if err != nil {
				return cause(err)
			}
			for _, f := range families {
				if _, err := expfmt.MetricFamilyToText(config.Stdout, f); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&listen, "listen", "", "answer at this address and port, as 127.0.0.1:9763")
	cmd.Flags().StringVar(&file, "textfile", "", "write to this file, which is replaced as one")
	cmd.Flags().UintVar(&services, "services", 0,
		"tell connections and packets of so many services apart: those that have the most")
	return cmd
}

// cause returns the first error of a collector or of the system, without the prefix of a library.
func cause(err error) error {
	var several prometheus.MultiError
	if errors.As(err, &several) && len(several) > 0 {
		err = several[0]
	}
	return cmp.Or(errors.Unwrap(err), err)
}

// writeTextfile replaces or creates a regular file. It refuses other files, such as devices: replacing one would remove
// it from the machine.
func writeTextfile(path string, registry *prometheus.Registry) error {
	info, err := os.Lstat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		err = errors.New("not a regular file")
	case err == nil || errors.Is(err, fs.ErrNotExist):
		err = prometheus.WriteToTextfile(path, registry)
	}
	if err != nil {
		return fmt.Errorf("--textfile %s: %w", path, cause(err))
	}
	return nil
}

func serve(ctx context.Context, config *cli.Config, address string, registry *prometheus.Registry) error {
	if strings.HasPrefix(address, ":") {
		address = "127.0.0.1" + address
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--listen=%s: %w", address, err)
	}
	fmt.Fprintf(config.Stderr, "mustang: http://%s/metrics; Ctrl-C ends\n", listener.Addr())
	// With a time-out answers are buffered: a slow client does not block others.
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 2, Timeout: 10 * time.Second})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", handler)
	return status.ServeAt(ctx, listener, mux)
}
