// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/bench"
	"mustang/internal/lab"
)

type peerFlags struct {
	bench.PeerOptions
	shell string
}

func (p *peerFlags) add(f *pflag.FlagSet) {
	f.StringVar(&p.shell, "peer", "", "run the server on another machine with this command, such as 'ssh root@10.0.0.1'")
	f.Var(cli.One(&p.Address, parsePeer, "a unicast IP address without a zone"), "peer-address",
		"IP address of the peer to send load to (default: the host of ssh)")
	f.StringVar(&p.Program, "peer-program", "mustang", "mustang's name or path on the peer")
	addUplink(f, &p.Uplink, "with --peer")
}

// options returns the machine of the flags, nil without one.
func (p peerFlags) options(cmd *cobra.Command) (_ *bench.PeerOptions, err error) {
	if p.shell == "" {
		switch {
		case cmd.Flags().Changed("peer"):
			err = errors.New("--peer is empty: want a command such as 'ssh root@10.0.0.1'")
		case p.Address.IsValid():
			err = errors.New("--peer-address needs --peer")
		case p.Uplink != lab.UplinkDevice{}:
			err = errors.New("--uplink and --uplink-addresses need --peer")
		}
		return nil, err
	}
	p.CPU = -1
	if p.Shell, err = splitWords(p.shell); err != nil {
		return nil, fmt.Errorf("--peer %q: %w", p.shell, err)
	}
	if _, err := exec.LookPath(p.Shell[0]); err != nil {
		return nil, fmt.Errorf("--peer: %w: want a command such as 'ssh root@10.0.0.1'", err)
	}
	// ssh passes the command line to a shell on the peer.
	if !regexp.MustCompile(`^[\w/.@+%:][\w/.@+%:-]*$`).MatchString(p.Program) {
		return nil, fmt.Errorf("--peer-program %q: want a name or a path without spaces and quotes", p.Program)
	}
	switch {
	case p.Address.IsValid():
	case filepath.Base(p.Shell[0]) != "ssh":
		return nil, fmt.Errorf("--peer-address is missing: the address of the peer does not follow from %q", p.Shell[0])
	default:
		if p.Address, err = sshAddress(cmd.Context(), p.Shell); err != nil {
			return nil, fmt.Errorf("--peer: %w; or set --peer-address", err)
		}
	}
	return &p.PeerOptions, checkUplink(p.Uplink)
}

func parsePeer(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if addr.Zone() != "" || addr.IsMulticast() || addr.IsUnspecified() {
		err = errors.New("not unicast")
	}
	return addr.Unmap(), err
}

// sshAddress returns the address of the host that an ssh command line connects to, according to ssh's configuration.
func sshAddress(ctx context.Context, shell []string) (netip.Addr, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, shell[0], append([]string{"-G"}, shell[1:]...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		text, _, _ := strings.Cut(stderr.String(), "\n")
		return netip.Addr{}, fmt.Errorf("%s -G: %w: %s", shell[0], err, text)
	}
	var host, network string
	for line := range strings.Lines(string(out)) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key {
		case "hostname":
			host = value
		case "addressfamily":
			network = map[string]string{"inet": "ip4", "inet6": "ip6"}[value]
		}
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap(), nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, cmp.Or(network, "ip"), host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("address of %q: %w", host, err)
	}
	return addrs[0].Unmap(), nil
}

// The words of a shell, and the characters that it removes: backslashes and quotes.
var (
	shellWord   = regexp.MustCompile(`(?s)(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+`)
	shellQuoted = regexp.MustCompile(`(?s)\\.|'[^']*'|"(?:[^"\\]|\\.)*"`)
	shellEscape = regexp.MustCompile("\\\\([\"\\\\$`])") // in double quotes
)

// splitWords splits a command line like a POSIX shell: with quotes and backslashes, without expansions and operators.
func splitWords(text string) ([]string, error) {
	words := shellWord.FindAllString(text, -1)
	switch rest := strings.TrimSpace(shellWord.ReplaceAllString(text, "")); {
	case rest == `\`:
		return nil, errors.New("backslash at the end")
	case rest != "":
		return nil, fmt.Errorf("unclosed quote %.1s", rest)
	case len(words) == 0:
		return nil, errors.New("no command")
	}
	for i, word := range words {
		words[i] = shellQuoted.ReplaceAllStringFunc(word, func(part string) string {
			switch part[0] {
			case '\\':
				return part[1:]
			case '"':
				return shellEscape.ReplaceAllString(part[1:len(part)-1], "$1")
			}
			return part[1 : len(part)-1]
		})
	}
	return words, nil
}
