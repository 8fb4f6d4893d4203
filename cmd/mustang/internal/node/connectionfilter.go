// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"mustang/internal/datapath/conntrack"
	"mustang/internal/service"
)

// filterFlags are the flags that select connections.
type filterFlags struct {
	client, service, backend, protocol string
	states                             []string
}

func (f *filterFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.client, "client", "", "`ADDRESS` of the client")
	flags.StringVar(&f.service, "service", "", "`ADDRESS[:PORT]` that the client connected to")
	flags.StringVar(&f.backend, "backend", "", "`ADDRESS[:PORT]` of the backend")
	flags.StringVar(&f.protocol, "protocol", "any", "tcp, udp, sctp or any")
	flags.StringSliceVar(&f.states, "state", nil, "syn, established, closed, unreplied or replied; repeat for more")
}

// isEmpty reports whether the flags select all connections.
func (f *filterFlags) isEmpty() bool {
	return f.client+f.service+f.backend == "" && strings.EqualFold(f.protocol, service.Any.String()) && len(f.states) == 0
}

func (f *filterFlags) parse() (filter conntrack.Filter, err error) {
	if f.client != "" {
		if filter.Client, err = parseAddr(f.client); err != nil {
			return filter, fmt.Errorf("--client %q: want an address", f.client)
		}
	}
	if filter.Service, err = parseEnd("service", f.service); err != nil {
		return filter, err
	}
	if filter.Backend, err = parseEnd("backend", f.backend); err != nil {
		return filter, err
	}
	if filter.Protocol, err = service.ParseProtocol(f.protocol); err != nil {
		return filter, fmt.Errorf("--protocol: %w", err)
	}
	for _, text := range f.states {
		var state conntrack.State
		if err := state.UnmarshalText([]byte(text)); err != nil {
			return filter, fmt.Errorf("--state: %w", err)
		}
		filter.States = append(filter.States, state)
	}
	return filter, nil
}

// parseAddr parses an address as connections have it: without a zone, and IPv4 as such.
func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	return addr.Unmap().WithZone(""), err
}

// parseEnd parses ADDRESS or ADDRESS:PORT, with brackets or without where that is clear. No text is no address.
func parseEnd(flag, text string) (netip.AddrPort, error) {
	if text == "" {
		return netip.AddrPort{}, nil
	}
	bare := text
	if inside, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inside, "]") {
		bare = strings.TrimSuffix(inside, "]")
	}
	if addr, err := parseAddr(bare); err == nil {
		return netip.AddrPortFrom(addr, 0), nil
	}
	end, err := netip.ParseAddrPort(text)
	if err != nil || end.Port() == 0 {
		return end, fmt.Errorf("--%s %q: want ADDRESS or ADDRESS:PORT", flag, text)
	}
	return netip.AddrPortFrom(end.Addr().Unmap(), end.Port()), nil
}
