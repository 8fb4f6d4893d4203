// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"mustang/internal/lock"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// FuzzServiceFlags parses the flags of svc add, a word for each line. Accepted flags make a valid service, and its
// settings in the words of svc ls, as flags, make the same service. Errors are one line.
func FuzzServiceFlags(f *testing.F) {
	for _, flags := range []string{
		"--service=10.96.0.100:0", "--service=10.96.0.100", "--service=host:1", "--service=0.1.2.3:1",
		"--service=10.96.0.100:080",
		"--backend=[fd00::1]:5201", "--backend=240.0.0.1:1", "--backend=192.168.10.10:1,gone", "--no-backends",
		"--protocol=icmp",
		"--protocol=sctp", "--choice=best", "--affinity=1ms", "--source-range=10.0.0.1/8", "--source-range=all",
		"--health-check-port=80",
	} {
		f.Add("--service=10.96.0.100:1\n--backend=192.168.10.10:1\n" + flags)
	}
	f.Add("--service=0.0.0.0:30080\n--node-port\n--no-backends\n--external-policy=local\n--health-check-port=31000")
	f.Add("--service=192.0.2.1:80\n--external\n--backend=10.1.0.1:80," +
		"weight=2\n--choice=maglev\n--affinity=3h\n--source-range=10.0.0.0/8")
	f.Add("--service=10.96.0.1:80\n--backend=10.1.0.1:80,draining\n--on-remove=reset\n--internal-policy=local")
	parse := func(words []string) (service.Service, error) {
		var flags serviceFlags
		cmd := &cobra.Command{}
		flags.add(cmd)
		if err := cmd.ParseFlags(words); err != nil {
			return service.Service{}, err
		}
		return flags.Service, flags.check()
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse(strings.Split(text, "\n"))
		if err != nil {
			message := err.Error()
			testkit.Require(t, message != "" && !strings.Contains(message, "\n"), "%q: error %q", text, message)
			return
		}
		err = s.Validate()
		testkit.Require(t, err == nil, "%q: %v", text, err)
		words := []string{"--service=" + s.Frontend.String(), "--protocol=" + s.Protocol.String()}
		for _, b := range s.Backends {
			words = append(words, "--backend="+b.String())
		}
		if len(s.Backends) == 0 {
			words = append(words, "--no-backends")
		}
		for word := range strings.SplitSeq(settings(s), ",") {
			if word != "" {
				words = append(words, "--"+word)
			}
		}
		again, err := parse(words)
		testkit.Require(t, err == nil && again.Equal(s), "%q is %+v, and as %q %+v, %v", text, s, words, again, err)
	})
}

// TestAffinitySeconds takes a whole number for seconds, as the field of a file is.
func TestAffinitySeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{"60": time.Minute, "0": 0, "86400": 24 * time.Hour,
		"2m": 2 * time.Minute, "86401": -1, "-60": -1, "1.5": -1, "60x": -1} {
		var flags serviceFlags
		cmd := &cobra.Command{}
		flags.add(cmd)
		err := cmd.ParseFlags([]string{"--service=10.96.0.1:80", "--backend=10.1.0.1:80", "--affinity=" + text})
		if err == nil {
			err = flags.check()
		}
		testkit.Check(t, (want >= 0 || err != nil) && (want < 0 || err == nil && flags.Affinity == want),
			"%s: %v, %v, want %v", text, flags.Affinity, err, want)
	}
}

func services(frontends ...string) (all []service.Service) {
	for _, f := range frontends {
		all = append(all, service.Service{Frontend: netip.MustParseAddrPort(f),
			Backends: service.Backends(netip.MustParseAddrPort("10.1.0.1:80"))})
	}
	return all
}

func want(t *testing.T, f savedFile, wanted []service.Service) {
	t.Helper()
	have, err := f.read()
	if c := service.Diff(have, wanted); err != nil || len(have) != len(wanted) || c.Unchanged != len(wanted) {
		t.Errorf("saved %v, %v, want %v", have, err, wanted)
	}
	entries, err := os.ReadDir(filepath.Dir(string(f)))
	testkit.Check(t, err == nil && len(entries) == 1, "in the directory: %v, %v", entries, err)
	info, err := os.Stat(string(f))
	testkit.Check(t, err == nil && info.Mode() == 0o600, "mode %v, %v", info, err)
}

func TestSavedReplace(t *testing.T) {
	f := savedFile(filepath.Join(t.TempDir(), "state", "services.json"))
	_, err := f.read()
	testkit.Check(t, errors.Is(err, os.ErrNotExist), "nothing is saved: error %v", err)
	first, second := services("10.96.0.1:80", "10.96.0.2:80"), services("10.96.0.3:80")
	testkit.Succeed(t, f.replace(t.Context(), first, func() error { return nil }))
	want(t, f, first)
	broken := errors.New("broken")
	err = f.replace(t.Context(), second, func() error { return broken })
	testkit.Check(t, errors.Is(err, broken), "error %v", err)
	want(t, f, first)
	// What a killed process left.
	testkit.Succeed(t, os.WriteFile(filepath.Join(filepath.Dir(string(f)), ".services.json.new"), []byte("{"), 0o644))
	testkit.Succeed(t, f.replace(t.Context(), second, func() error { return nil }))
	want(t, f, second)
	testkit.Succeed(t, f.replace(t.Context(), nil, func() error { return nil }))
	want(t, f, nil)
}

// TestSavedTakesTurns waits for another writer until the limit of the context.
func TestSavedTakesTurns(t *testing.T) {
	f := savedFile(filepath.Join(t.TempDir(), "services.json"))
	ctx := lock.Wait{Limit: 10 * time.Millisecond}.WithContext(t.Context())
	testkit.Succeed(t, f.replace(t.Context(), services("10.96.0.1:80"), func() error {
		err := f.replace(ctx, nil, func() error { return nil })
		var held *lock.Error
		testkit.Check(t, errors.As(err, &held) && held.PID == os.Getpid() && errors.Is(err, context.DeadlineExceeded),
			"error %v", err)
		return nil
	}))
	want(t, f, services("10.96.0.1:80"))
}
