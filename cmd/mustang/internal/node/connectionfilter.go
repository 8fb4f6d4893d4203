// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/flows"
)

// addFilter adds the flags that select connections.
func addFilter(flags *pflag.FlagSet, f *flows.Filter) {
	const end = "ADDRESS or ADDRESS:PORT"
	flags.Var(cli.One(&f.Client, parseAddr, "an address"), "client", "`ADDRESS` of the client")
	flags.Var(cli.One(&f.Service, parseEnd, end), "service", "`ADDRESS[:PORT]` that the client connected to")
	flags.Var(cli.One(&f.Backend, parseEnd, end), "backend", "`ADDRESS[:PORT]` of the backend")
	flags.Var(protocolFlag(&f.Protocol), "protocol", "tcp, udp, sctp or any")
	flags.Var(cli.List(&f.States, parseState, ""), "state",
		"syn, established, closed, unreplied or replied; repeat for more")
}

func parseState(text string) (s flows.State, err error) { return s, s.UnmarshalText([]byte(text)) }

// parseAddr parses an address as connections have it: without a zone, and IPv4 as such.
func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	return addr.Unmap().WithZone(""), err
}

// parseEnd parses ADDRESS or ADDRESS:PORT, with brackets or without where that is clear.
func parseEnd(text string) (netip.AddrPort, error) {
	bare := text
	if inside, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inside, "]") {
		bare = strings.TrimSuffix(inside, "]")
	}
	if addr, err := parseAddr(bare); err == nil {
		return netip.AddrPortFrom(addr, 0), nil
	}
	end, err := netip.ParseAddrPort(text)
	if err == nil && end.Port() == 0 {
		err = errors.New("port 0")
	}
	return netip.AddrPortFrom(end.Addr().Unmap(), end.Port()), err
}
