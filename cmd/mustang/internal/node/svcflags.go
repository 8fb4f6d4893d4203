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
	address, protocol string
	backends, ranges  []string
	noBackends        bool
	s                 service.Service // the flags that are its fields
}

func (f *serviceFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.address, "service", "", "address and port that clients connect to")
	flags.StringArrayVar(&f.backends, "backend", nil,
		"address and port of a backend, and if need be its state, its weight, and local if it is on this node: 192.168.10.10:80,draining,weight=2,local; repeat for more")
	flags.BoolVar(&f.noBackends, "no-backends", false, "refuse all clients")
	flags.StringVar(&f.protocol, "protocol", "any", "tcp, udp, sctp, or any for tcp and udp")
	flags.TextVar(&f.s.Choice, "choice", service.Random, "how a backend is chosen for a new connection: `random|maglev`")
	flags.Var(seconds{&f.s.Affinity}, "affinity", "how long a client keeps its backend after its last connection, in seconds or as 2m, at most 24h; 0: none")
	flags.Lookup("affinity").DefValue = "0"
	flags.TextVar(&f.s.InternalPolicy, "internal-policy", service.Cluster, "backends of clients in the cluster: all, or only on their node: `cluster|local`")
	flags.TextVar(&f.s.ExternalPolicy, "external-policy", service.Cluster, "backends of clients outside: all, or only on the receiving node: `cluster|local`")
	flags.BoolVar(&f.s.NodePort, "node-port", false, "the service is a port of the node, of all its addresses if the address is 0.0.0.0 or ::; also for clients behind an uplink")
	flags.BoolVar(&f.s.External, "external", false, "the address is an external or load-balancer address, also for clients behind an uplink")
	flags.TextVar(&f.s.DSR, "dsr", service.NoDSR, "how backends on other nodes answer clients outside, by this node or themselves: `none|ipip`; needs --node-port or --external")
	flags.StringArrayVar(&f.ranges, "source-range", nil, "`PREFIX` of clients that are served, as 10.0.0.0/8; repeat for more")
	flags.Uint16Var(&f.s.HealthCheckPort, "health-check-port", 0, "port at which svc health tells load balancers whether this node has a backend; needs --external-policy=local")
	flags.TextVar(&f.s.OnRemove, "on-remove", service.Keep, "what happens to open TCP connections of a backend that is removed: `keep|reset`")
	cli.CompleteFlag(cmd, "protocol", cli.Fixed("tcp", "udp", "sctp", "any"))
	flags.VisitAll(func(flag *pflag.Flag) {
		if words, _ := pflag.UnquoteUsage(flag); strings.Contains(words, "|") {
			cli.CompleteFlag(cmd, flag.Name, cli.Fixed(strings.Split(words, "|")...))
		}
	})
}

// seconds is the flag value of a duration: "60" is 60 seconds, as in files, and "2m" two minutes.
type seconds struct{ *time.Duration }

// Set implements pflag.Value.
func (s seconds) Set(text string) (err error) {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		*s.Duration = time.Duration(n) * time.Second
		return nil
	}
	*s.Duration, err = time.ParseDuration(text)
	return err
}

// Type implements pflag.Value.
func (seconds) Type() string { return "duration" }

// parse returns the service of the flags.
func (f *serviceFlags) parse() (s service.Service, err error) {
	s = f.s
	if f.address == "" {
		return s, errors.New("--service is missing")
	}
	if s.Frontend, err = service.ParseFrontend(f.address); err != nil {
		return s, err
	}
	if s.Protocol, err = service.ParseProtocol(f.protocol); err != nil {
		return s, err
	}
	switch {
	case len(f.backends) == 0 && !f.noBackends:
		return s, errors.New("--backend is missing; --no-backends refuses all clients")
	case len(f.backends) > 0 && f.noBackends:
		return s, errors.New("--backend and --no-backends exclude each other")
	}
	for _, text := range f.backends {
		var b service.Backend
		if err := b.UnmarshalText([]byte(text)); err != nil {
			return s, err
		}
		s.Backends = append(s.Backends, b)
	}
	if s.SourceRanges, err = cli.ParseEach("source-range", f.ranges, netip.ParsePrefix, "an address and its length, as 10.0.0.0/8"); err != nil {
		return s, err
	}
	return s, s.Validate()
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
