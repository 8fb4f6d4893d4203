// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/bench"
	"mustang/internal/bench/suites"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/result"
	"mustang/internal/service/manifest"
	"mustang/internal/testkit"
)

const (
	readme        = "../../README.md"
	tutorial      = "../../docs/tutorial.md"
	measuringPage = "../../docs/measuring.md"
	resultsPage   = "../../docs/reference/results.md"
	explainPage   = "../../docs/explain.md"
	debugPage     = "../../docs/debug.md"
	labsPage      = "../../docs/labs.md"
	servicesPage  = "../../docs/services.md"
	policyPage    = "../../docs/policy.md"
	resultsSchema = "../../docs/results.schema.json"
)

// shellBlocks returns the lines of a page's ```sh blocks below a heading.
func shellBlocks(t *testing.T, page, heading string) []string {
	t.Helper()
	_, section, found := strings.Cut(readText(t, page), "\n## "+heading+"\n")
	testkit.Require(t, found, "%s has no section %q", page, heading)
	section, _, _ = strings.Cut(section, "\n## ")
	var lines []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1) {
		lines = append(lines, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	return lines
}

// yamlBlock returns the first ```yaml block of a page behind a heading.
func yamlBlock(t *testing.T, page, heading string) string {
	t.Helper()
	_, text, _ := strings.Cut(readText(t, page), "\n## "+heading+"\n")
	_, text, _ = strings.Cut(text, "```yaml\n")
	text, _, found := strings.Cut(text, "```\n")
	testkit.Require(t, found, "%s has no YAML in section %q", page, heading)
	return text
}

// runPage runs the commands of sections of a page unchanged, with a file in their directory. A comment marks a command
// that fails or prints nothing.
func runPage(t *testing.T, file, page string, headings ...string) {
	t.Helper()
	testkit.RequireRoot(t)
	var script strings.Builder
	t.Cleanup(func() {
		for _, added := range regexp.MustCompile("exec ip netns add (.*)").FindAllStringSubmatch(script.String(), -1) {
			err := netns.Delete(added[1])
			testkit.Check(t, err == nil, "%v", err)
		}
	})
	for _, heading := range headings {
		for _, line := range shellBlocks(t, page, heading) {
			command, says, _ := strings.Cut(line, "  #")
			how := map[bool]string{true: "! exec ", false: "exec "}[says == " fails"]
			if strings.Contains(command, "iperf3 -") && !strings.Contains(command, "iperf3 -s") {
				how = "retry " // the server was started a moment ago
			}
			script.WriteString(how + strings.Replace(strings.TrimSpace(command), " ping ", " busybox ping ", 1) + "\n")
			if says == " nothing" {
				script.WriteString("! stdout .\n")
			}
		}
	}
	testkit.Require(t, strings.Count(script.String(), "mustang ") >= 4*len(headings),
		"hardly any commands found:\n%s", script.String())
	runScript(t, script.String()+file)
}

// TestTutorial runs the tutorial's commands.
func TestTutorial(t *testing.T) {
	testkit.RequireTool(t, "iperf3")
	testkit.RequireTool(t, "ip")
	runPage(t, "", tutorial, "Try it by hand", "Services for your own pods", "TUN")
}

// TestServicesPage runs the commands of the page on services, with its file.
func TestServicesPage(t *testing.T) {
	file := "-- services.yaml --\n" + yamlBlock(t, servicesPage, "A set of services")
	runPage(t, file, servicesPage, "One service", "A set of services")
}

// TestLabsPage runs the commands of the page on labs with its file, which is one of the repository.
func TestLabsPage(t *testing.T) {
	testkit.RequireTool(t, "iperf3")
	file := readText(t, "../../docs/two-racks.yaml")
	testkit.Check(t, yamlBlock(t, labsPage, "Labs from a file") == file, "the page has not the file docs/two-racks.yaml")
	runPage(t, "-- docs/two-racks.yaml --\n"+file, labsPage, "Labs from a file", "BIG TCP")
}

// TestServicesPageHasTheFlags of svc add, and the fields of the file.
func TestServicesPageHasTheFlags(t *testing.T) {
	text := testkit.Must(os.ReadFile(servicesPage))(t)
	cmd, _, err := commandTree(cli.Environment{Getenv: func(string) string { return "" }}).Find([]string{"svc", "add"})
	testkit.Succeed(t, err)
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		testkit.Check(t, strings.Contains(string(text), "`--"+flag.Name+"`"), "%s lacks --%s", servicesPage, flag.Name)
	})
	entry := reflect.TypeFor[manifest.Entry]()
	for i := range entry.NumField() {
		name, _, _ := strings.Cut(entry.Field(i).Tag.Get("json"), ",")
		testkit.Check(t, strings.Contains(string(text), "\n| `"+name+"` |"), "%s lacks field %s", servicesPage, name)
	}
}

// TestReadmeTargets holds README and CONTRIBUTING to the Makefile's targets.
func TestReadmeTargets(t *testing.T) {
	makefile := testkit.Must(os.ReadFile("../../Makefile"))(t)
	seen := 0
	for _, path := range []string{readme, "../../CONTRIBUTING.md"} {
		text := testkit.Must(os.ReadFile(path))(t)
		for _, match := range regexp.MustCompile(`(?m)^ *make ([a-z]+)`).FindAllStringSubmatch(string(text), -1) {
			seen++
			testkit.Check(t, regexp.MustCompile("(?m)^"+match[1]+":").Match(makefile),
				"%s: make %s: no such target", path, match[1])
		}
	}
	testkit.Check(t, seen >= 6, "only %d make commands found", seen)
}

// TestExamples compares the examples in the help texts, and on the pages of measuring, the CNI plugin, results, explain
// and debugging, with the existing commands and flags.
func TestExamples(t *testing.T) {
	e := cli.Environment{Getenv: func(string) string { return "" }}
	var lines []string
	eachCommand(commandTree(e), func(cmd *cobra.Command) { lines = append(lines, strings.Split(cmd.Example, "\n")...) })
	for _, section := range [][2]string{
		{measuringPage, "Commands"}, {measuringPage, "Two machines"}, {cniPage, "Install"}, {resultsPage, "Commands"},
		{explainPage, "Commands"}, {"../../docs/compare-kernels.md", "Recipes"},
		{debugPage, "Commands"}, {"../../docs/reference/metrics.md", "Commands"},
	} {
		lines = append(lines, shellBlocks(t, section[0], section[1])...)
	}
	seen := 0
	for _, line := range lines {
		line, _, _ = strings.Cut(line, "  #")
		if strings.TrimSpace(line) == "" {
			continue
		}
		seen++
		words, err := splitWords(line)
		if err != nil {
			t.Errorf("example %q: %v", line, err)
			continue
		}
		if words[0] != "mustang" {
			t.Errorf("example %q does not begin with mustang", line)
			continue
		}
		cmd, rest, err := commandTree(e).Find(words[1:])
		if err != nil || !cmd.Runnable() || cmd.HasSubCommands() && !strings.Contains(cmd.Use, " ") { // a group
			t.Errorf("example %q: %v", line, err)
			continue
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("example %q: %v", line, err)
			continue
		}
		err = cmd.ValidateArgs(cmd.Flags().Args())
		testkit.Check(t, err == nil, "example %q: %v", line, err)
	}
	testkit.Check(t, seen >= 10, "only %d examples found", seen)
}

// TestScenarios compares docs/reference/scenarios.md with the rows: the page has the ID of each row of each suite or a
// prefix of it, and each ID on the page is a row's ID or a prefix of one.
func TestScenarios(t *testing.T) {
	text := testkit.Must(os.ReadFile("../../docs/reference/scenarios.md"))(t)
	named := map[string]map[string]bool{}
	for _, section := range strings.Split(string(text), "\n## Suite ")[1:] {
		words := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch("`"+strings.TrimPrefix(section, "`"), -1)
		suite := words[0][1]
		named[suite] = map[string]bool{}
		for _, row := range regexp.MustCompile(`(?m)^\|.*\|(.*)\|$`).FindAllStringSubmatch(section, -1) {
			for _, id := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
				named[suite][id[1]] = false
			}
		}
	}
	for _, suite := range suites.List() {
		for _, row := range testkit.Must(bench.Options{Suites: []suites.Suite{suite}, All: true}.Rows())(t) {
			found := false
			for id := range named[suite.Name] {
				if row.ID == id || strings.HasPrefix(row.ID, id+"/") || id == result.ViaEBPFSocket &&
					strings.HasSuffix(row.ID, "/"+id) {
					named[suite.Name][id], found = true, true
				}
			}
			testkit.Check(t, found, "row %s of suite %s is not in docs/reference/scenarios.md", row.ID, suite.Name)
		}
		for id, found := range named[suite.Name] {
			testkit.Check(t, found, "docs/reference/scenarios.md: suite %s has no row %s", suite.Name, id)
		}
	}
}

// TestScenariosListUsualRows holds the table of usual rows in docs/reference/scenarios.md to the rows that suite
// pod-links measures without --all.
func TestScenariosListUsualRows(t *testing.T) {
	text := testkit.Must(os.ReadFile("../../docs/reference/scenarios.md"))(t)
	_, table, _ := strings.Cut(string(text), "\nA run measures the usual rows:\n")
	table, _, found := strings.Cut(table, "\n`--all` measures all rows")
	testkit.Require(t, found, "docs/reference/scenarios.md has no table of usual rows")
	var named, usual []string
	for _, id := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(table, -1) {
		named = append(named, id[1])
	}
	list := testkit.Must(suites.Lookup(suites.Default))(t)
	for _, p := range list[0].Paths {
		if !p.Extra {
			usual = append(usual, p.ID)
		}
	}
	slices.Sort(named)
	slices.Sort(usual)
	testkit.Check(t, slices.Equal(named, usual), "the page has the usual rows\n%q, want\n%q", named, usual)
}

// TestHelp requires a line of help for every command.
func TestHelp(t *testing.T) {
	eachCommand(commandTree(cli.Environment{Getenv: func(string) string { return "" }}), func(cmd *cobra.Command) {
		testkit.Check(t, cmd.Short != "", "%s has no help", cmd.CommandPath())
	})
}

// TestPolicyPage runs the first example of the page on policies.
func TestPolicyPage(t *testing.T) {
	testkit.RequireTool(t, "busybox")
	const heading = "Three pods on a bridge and a policy"
	runPage(t, "-- db.yaml --\n"+yamlBlock(t, policyPage, heading), policyPage, heading)
}

// TestPolicyPageIpvlan runs the commands of the page on policies with which root of a pod tries to get past one.
func TestPolicyPageIpvlan(t *testing.T) {
	mode := testkit.Must(podlink.Lookup("ipvlan-l2"))(t)
	testkit.RequireMode(t, mode.Probe())
	testkit.RequireTool(t, "busybox")
	testkit.RequireTool(t, "tc")
	const page, heading = "../../docs/reference/policy.md", "Two ipvlan pods of one host"
	runPage(t, "-- isolate-b.yaml --\n"+yamlBlock(t, page, heading), page, heading)
}
