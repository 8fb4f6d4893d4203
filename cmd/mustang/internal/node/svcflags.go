// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/service"
)

// serviceFlags are the flags of a service.
type serviceFlags struct {
	service.Service
	noBackends bool
}

func (f *serviceFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(cli.One(&f.Frontend, service.ParseFrontend, ""), "service", "address and port that clients connect to")
	flags.Var(cli.Each(&f.Backends, parseBackend, ""), "backend",
		"address and port of a backend, and if need be its state, "+
			"its weight, and local if it is on this node: 192.168.10.10:80,draining,weight=2,local; repeat for more")
	flags.BoolVar(&f.noBackends, "no-backends", false, "refuse all clients")
	flags.Var(protocolFlag(&f.Protocol), "protocol", "tcp, udp, sctp, or any for tcp and udp")
	flags.TextVar(&f.Choice, "choice", service.Random, "how a backend is chosen for a new connection: `random|maglev`")
	flags.Var(cli.One(&f.Affinity, parseSeconds, "a duration such as 10ms or 2m"), "affinity",
		"how long a client keeps its backend after its last connection, in seconds or as 2m, at most 24h; 0: none")
	flags.Lookup("affinity").DefValue = "0"
	flags.TextVar(&f.InternalPolicy, "internal-policy", service.Cluster, "backends of clients in the cluster: all, or only on their node: `cluster|local`")
	flags.TextVar(&f.ExternalPolicy, "external-policy", service.Cluster, "backends of clients outside: all, or only on the receiving node: `cluster|local`")
	flags.BoolVar(&f.NodePort, "node-port", false, "the service is a port of the node, of all its addresses if the address is 0.0.0.0 or ::; also for clients behind an uplink")
	flags.BoolVar(&f.External, "external", false, "the address is an external or load-balancer address, also for clients behind an uplink")
	flags.TextVar(&f.DSR, "dsr", service.NoDSR, "how backends on other nodes answer clients outside, by this node or themselves: `none|ipip`; needs --node-port or --external")
	flags.Var(cli.Each(&f.SourceRanges, netip.ParsePrefix, "an address and its length, as 10.0.0.0/8"), "source-range",
		"`PREFIX` of clients that are served, as 10.0.0.0/8; repeat for more")
	flags.Uint16Var(&f.HealthCheckPort, "health-check-port", 0, "port at which svc health tells load balancers whether this node has a backend; needs --external-policy=local")
	flags.TextVar(&f.OnRemove, "on-remove", service.Keep, "what happens to open TCP connections of a backend that is removed: `keep|reset`")
	cli.CompleteFlag(cmd, "protocol", cli.Fixed("tcp", "udp", "sctp", "any"))
	flags.VisitAll(func(flag *pflag.Flag) {
		if words, _ := pflag.UnquoteUsage(flag); strings.Contains(words, "|") {
			cli.CompleteFlag(cmd, flag.Name, cli.Fixed(strings.Split(words, "|")...))
		}
	})
}

// protocolFlag is a flag that is any unless it is given.
func protocolFlag(to *service.Protocol) *cli.Parsed {
	flag := cli.One(to, service.ParseProtocol, "")
	_ = flag.Set(service.Any.String())
	return flag
}

func parseBackend(text string) (b service.Backend, err error) {
	return b, b.UnmarshalText([]byte(text))
}

// parseSeconds takes "60" for 60 seconds, as files do, and "2m" for two minutes.
func parseSeconds(text string) (time.Duration, error) {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	return time.ParseDuration(text)
}

// check refuses flags that make no service.
func (f *serviceFlags) check([]string) error {
	switch {
	case !f.Frontend.IsValid():
		return errors.New("--service is missing")
	case len(f.Backends) == 0 && !f.noBackends:
		return errors.New("--backend is missing; --no-backends refuses all clients")
	case len(f.Backends) > 0 && f.noBackends:
		return errors.New("--backend and --no-backends exclude each other")
	}
	return f.Validate()
}

// settings returns what is not default of a service, in the words of the flags.
func settings(s service.Service) string {
	var words []string
	for _, w := range []struct {
		set  bool
		text string
	}{
		{s.NodePort, "node-port"},
		{s.External, "external"},
		{s.DSR != service.NoDSR, "dsr=" + s.DSR.String()},
		{s.Choice != service.Random, "choice=" + s.Choice.String()},
		{s.Affinity != 0, fmt.Sprintf("affinity=%ds", s.Affinity/time.Second)},
		{s.InternalPolicy != service.Cluster, "internal-policy=" + s.InternalPolicy.String()},
		{s.ExternalPolicy != service.Cluster, "external-policy=" + s.ExternalPolicy.String()},
		{s.HealthCheckPort != 0, fmt.Sprintf("health-check-port=%d", s.HealthCheckPort)},
		{s.OnRemove != service.Keep, "on-remove=" + s.OnRemove.String()},
	} {
		if w.set {
			words = append(words, w.text)
		}
	}
	if len(s.SourceRanges) > 0 {
		words = append(words, "source-range="+shortened(texts(s.SourceRanges)))
	}
	return strings.Join(words, ",")
}
