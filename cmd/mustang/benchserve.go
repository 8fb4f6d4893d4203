// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"mustang/internal/bench"
	"mustang/internal/traffic"
)

// serveFlags are the flags of bench serve.
type serveFlags struct {
	listen, tokenFile, writeToken string
	cpu                           int
}

func (c *config) benchServe() *cobra.Command {
	var flags serveFlags
	cmd := &cobra.Command{
		Use:   "serve --listen ADDR[:PORT]",
		Short: "Be the other machine of a bench: serve its load to a peer that knows the token",
		Long: `Serves the load of mustang bench SUITE --peer, which runs on another machine, until
Ctrl-C. Both need the same token: a secret of at least 16 bytes in a file that only
its owner may read. Without --token-file a random one is made and shown, once; with
--write-token it is written to a new file instead. Neither side ever sends it: each
proves by HMAC-SHA256 that it knows it. What follows is not encrypted.

A peer gets runs of the workloads, each of a minute at most, over the address that it
connected to and a port that is chosen for it; one peer at a time, and connections
from its own address alone. Nothing else is offered.`,
		Example: `  mustang bench serve --listen 10.0.0.1 --write-token token
  mustang bench serve --listen [fd00:1::1]:5202 --token-file /root/token --cpu 1`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			addr, err := flags.check()
			if err != nil {
				return usage(err)
			}
			if err := requireRoot(cmd); err != nil {
				return err
			}
			return c.serveBench(cmd, flags, addr)
		},
	}
	f := cmd.Flags()
	f.StringVar(&flags.listen, "listen", "", fmt.Sprintf("address to listen on, and a port if not %d; 0.0.0.0 and [::] are all of them", traffic.DefaultPeerPort))
	f.StringVar(&flags.tokenFile, "token-file", "", "file with the token, readable by its owner only")
	f.StringVar(&flags.writeToken, "write-token", "", "make a random token and write it to this new file")
	f.IntVar(&flags.cpu, "cpu", -1, "CPU to serve load on (default: any)")
	return cmd
}

// check refuses what makes no sense, and returns the address to listen on.
func (s serveFlags) check() (netip.AddrPort, error) {
	if s.listen == "" {
		return netip.AddrPort{}, errors.New("--listen is missing: which address of this machine is the peer to connect to?")
	}
	addr, err := parsePeer("--listen", s.listen)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if s.tokenFile != "" && s.writeToken != "" {
		return netip.AddrPort{}, errors.New("--token-file and --write-token exclude each other")
	}
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return netip.AddrPort{}, fmt.Errorf("ask for CPUs: %w", err)
	}
	if s.cpu < -1 || s.cpu >= 0 && !cpus.IsSet(s.cpu) {
		return netip.AddrPort{}, fmt.Errorf("--cpu %d: there is no such CPU for this process", s.cpu)
	}
	return addr, nil
}

// parsePeer reads the address of a control connection's server, for a flag.
func parsePeer(flag, text string) (netip.AddrPort, error) {
	ap, err := netip.ParseAddrPort(text)
	if err != nil {
		addr, addrErr := netip.ParseAddr(text)
		if addrErr != nil {
			return netip.AddrPort{}, fmt.Errorf("%s %q: want ADDR or ADDR:PORT, or [ADDR]:PORT for IPv6", flag, text)
		}
		ap = netip.AddrPortFrom(addr, traffic.DefaultPeerPort)
	}
	switch {
	case ap.Port() == 0:
		return netip.AddrPort{}, fmt.Errorf("%s %q: port 0", flag, text)
	case ap.Addr().Zone() != "" || ap.Addr().IsMulticast():
		return netip.AddrPort{}, fmt.Errorf("%s %q: want an address without a zone that is no multicast group", flag, text)
	}
	return ap, nil
}

// readPeer returns the other machine that flags name.
func readPeer(address, tokenFile string) (*bench.PeerOptions, error) {
	if address == "" || tokenFile == "" {
		return nil, errors.New("--peer and --token-file go together")
	}
	addr, err := parsePeer("--peer", address)
	if err != nil {
		return nil, err
	}
	token, err := traffic.ReadToken(tokenFile)
	if err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	return &bench.PeerOptions{Address: addr, Token: token}, nil
}

// serveBench serves peers until the command is interrupted.
func (c *config) serveBench(cmd *cobra.Command, flags serveFlags, addr netip.AddrPort) error {
	token, hint, err := flags.token()
	if err != nil {
		return err
	}
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(c.stderr, format+"\n", args...)
	}
	err = traffic.Serve(cmd.Context(), traffic.ServeOptions{
		Listen: addr, Token: token, CPU: flags.cpu,
		Ready: func(addr netip.AddrPort) {
			say("listening on %s", addr)
			if hint != "" {
				say("%s", hint)
			}
		},
		Note: func(text string) { say("%s", text) },
	})
	if err != nil && flags.writeToken != "" { // it is good for nothing
		err = errors.Join(err, os.Remove(flags.writeToken))
	}
	return err
}

// token returns the token, and what is to be said of one that was made.
func (s serveFlags) token() (token []byte, hint string, err error) {
	switch {
	case s.tokenFile != "":
		token, err = traffic.ReadToken(s.tokenFile)
		return token, "", err
	case s.writeToken != "":
		token = traffic.NewToken()
		return token, fmt.Sprintf("token written to %s: copy it to the other machine, for its --token-file", s.writeToken),
			traffic.WriteToken(s.writeToken, token)
	}
	token = traffic.NewToken()
	return token, fmt.Sprintf(`token, shown this once: %s
on the other machine, put it into a file that only you can read, for --token-file:
  (umask 077; cat > token)`, token), nil
}
