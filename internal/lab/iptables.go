// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"

	"mustang/internal/netns"
)

// iptablesList is the list as rules of a host, in the form of kube-router and of Calico without ipsets: established connections are accepted
// first, then the pod's chain has a rule for each of the list's, and one that drops.
type iptablesList struct{ host *netns.Namespace }

var iptablesPlace = rulesPlace{table: "filter", first: "FORWARD", second: "POD-ALLOWLIST"}

// Write writes a list into a host that has no rules, by one iptables-restore.
func (t iptablesList) Write(_ context.Context, l allowlist) error {
	var text bytes.Buffer
	text.WriteString("*filter\n:FORWARD ACCEPT [0:0]\n:POD-ALLOWLIST - [0:0]\n" +
		"-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n")
	fmt.Fprintf(&text, "-A FORWARD -d %s -j POD-ALLOWLIST\n", l.Pod)
	for _, r := range l.Rules {
		fmt.Fprintf(&text, "-A POD-ALLOWLIST %s\n", r.iptables())
	}
	text.WriteString("-A POD-ALLOWLIST -j DROP\nCOMMIT\n")
	return t.restore(text.Bytes())
}

// iptables returns the match and the target of the rule.
func (r allowRule) iptables() string {
	return fmt.Sprintf("-s %s -p tcp -m tcp --dport %d -j ACCEPT", r.From, r.Port)
}

// Add appends a rule. As Calico's Felix it writes that rule alone, as Remove does.
func (t iptablesList) Add(_ context.Context, l allowlist, r allowRule) error {
	return t.restore(fmt.Appendf(nil, "*filter\n-I POD-ALLOWLIST %d %s\nCOMMIT\n", len(l.Rules)+1, r.iptables()))
}

// Remove removes a rule that Add has added.
func (t iptablesList) Remove(_ context.Context, l allowlist, _ allowRule) error {
	return t.restore(fmt.Appendf(nil, "*filter\n-D POD-ALLOWLIST %d\nCOMMIT\n", len(l.Rules)+1))
}

// Clear removes what Write wrote.
func (t iptablesList) Clear(context.Context) error {
	return t.restore([]byte("*filter\n-F FORWARD\n-F POD-ALLOWLIST\n-X POD-ALLOWLIST\nCOMMIT\n"))
}

// Counters reads the rules' counters, of iptables-nft.
func (t iptablesList) Counters() (map[string]uint64, error) { return iptablesPlace.counters(t.host) }

func (t iptablesList) restore(input []byte) error {
	cmd := exec.Command("iptables-restore", "-w", "--noflush")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &stderr
	if err := t.host.Do(cmd.Run); err != nil {
		return fmt.Errorf("allow list with iptables: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return nil
}
