// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
)

// decisionJSON is the decision of one end as policy explain -o json prints it.
type decisionJSON struct {
	Allow bool   `json:"allow"`
	Rule  string `json:"rule"`
	// Isolating are the policies by NAMESPACE/NAME that select the pod, where no rule of theirs allows the connection:
	// Rule names one.
	Isolating []string `json:"isolating,omitempty"`
}

// endJSON is an end of the connection.
type endJSON struct {
	Address string            `json:"address"`
	Pod     string            `json:"pod,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	// Elsewhere is whether the pod is not of this node, which does not enforce its policies.
	Elsewhere bool `json:"elsewhere,omitempty"`
}

func (e endJSON) String() string {
	text := strings.TrimPrefix(e.Pod+" "+e.Address, " ")
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(e.Labels)) {
		labels = append(labels, key+"="+e.Labels[key])
	}
	if len(labels) > 0 {
		text += " (" + strings.Join(labels, ",") + ")"
	}
	return text
}

// answer is what policies decide about a connection.
type answer struct {
	policy.Flow
	source, destination endJSON
	egress, ingress     policy.Decision
}

func (a *answer) allow() bool { return a.egress.Allow && a.ingress.Allow }

// answer asks the policies about a connection.
func (k known) answer(f policy.Flow) (a answer, err error) {
	a = answer{Flow: f, source: k.end(f.Source), destination: k.end(f.Destination)}
	a.egress, a.ingress, err = policy.Explain(k.Snapshot, f)
	return a, err
}

func (c commands) printFlow(k known, of policy.Flow, args []string, format string) error {
	f, other, err := k.ends(args[0], args[1])
	if err != nil {
		return err
	}
	var answers []answer
	for _, f := range []policy.Flow{f, other} {
		if !f.Source.IsValid() {
			continue
		}
		f.Protocol, f.Port = of.Protocol, of.Port
		a, err := k.answer(f)
		if err != nil {
			return err
		}
		answers = append(answers, a)
	}
	if format == "json" {
		return c.printFlowJSON(k, answers)
	}
	_, err = io.WriteString(c.Stdout, strings.Join(k.lines(answers), "\n")+"\n")
	return err
}

// lines tells the first of some answers, and the verdicts of the others.
func (k known) lines(answers []answer) []string {
	a := answers[0]
	tell := func(d policy.Decision) string {
		if d.Origin.Reason == policy.DefaultDeny {
			return isolated(k.Snapshot, a.Flow, d.Origin.Direction)
		}
		by := " by "
		if d.Origin.Reason == policy.ToItself || d.Origin.Reason == policy.OwnNode {
			by = ": "
		}
		return verdict(d.Allow) + by + k.describe(d.Origin)
	}
	lines := []string{
		fmt.Sprintf("%s > %s", a.source, a.destination), verdict(a.allow()),
		"egress: " + tell(a.egress), "ingress: " + tell(a.ingress),
	}
	for _, end := range []endJSON{a.source, a.destination} {
		if end.Elsewhere {
			lines = append(lines, end.Pod+" is not a pod of this node, which does not enforce its policies")
		}
	}
	if a.Port == 0 {
		lines = append(lines, "for protocols without ports, as of a ping: name PORT for others")
	}
	for _, other := range answers[1:] {
		lines = append(lines, fmt.Sprintf("by IPv6, %s > %s: %s", other.Source, other.Destination, verdict(other.allow())))
	}
	if k.audited {
		lines = append(lines, auditedOnly)
	}
	if i := slices.IndexFunc(k.listed, func(p policies.Listed) bool { return p.Off }); i >= 0 {
		lines = append(lines, fmt.Sprintf("without the audited policies of owner %s, which are off: others are enforced",
			k.listed[i].Owner))
	}
	return lines
}

// flowJSON is an answer as policy explain -o json prints it.
type flowJSON struct {
	Source      endJSON      `json:"source"`
	Destination endJSON      `json:"destination"`
	Allow       bool         `json:"allow"`
	Egress      decisionJSON `json:"egress"`
	Ingress     decisionJSON `json:"ingress"`
}

func (k known) decisionJSON(f policy.Flow, d policy.Decision) decisionJSON {
	decision := decisionJSON{Allow: d.Allow, Rule: k.describe(d.Origin)}
	if d.Origin.Reason == policy.DefaultDeny {
		decision.Isolating, _ = policy.Isolating(k.Snapshot, f, d.Origin.Direction) // it has been explained
	}
	return decision
}

func (c commands) printFlowJSON(k known, answers []answer) error {
	all := make([]*flowJSON, 2)
	for i, a := range answers {
		all[i] = &flowJSON{
			a.source, a.destination, a.allow(), k.decisionJSON(a.Flow, a.egress), k.decisionJSON(a.Flow, a.ingress),
		}
	}
	return cli.PrintJSON(c.Stdout, struct {
		Schema int `json:"schema"`
		flowJSON
		Audited bool `json:"audited"`
		// IPv6 is the answer for the IPv6 addresses of two pods that have both families.
		IPv6 *flowJSON `json:"ipv6,omitempty"`
	}{cli.Schema, *all[0], k.audited, all[1]})
}

// isolated tells which policies deny a flow by default.
func isolated(s policy.Snapshot, f policy.Flow, d policy.Direction) string {
	names, _ := policy.Isolating(s, f, d) // it has been explained
	if last := len(names) - 1; last > 0 {
		return fmt.Sprintf("denied: %s and %s select this pod, and no rule of theirs allows it", strings.Join(names[:last],
			", "), names[last])
	}
	return fmt.Sprintf("denied: %s selects this pod, and no rule of it allows it", strings.Join(names, ""))
}

func verdict(allow bool) string {
	if allow {
		return "allowed"
	}
	return "denied"
}
