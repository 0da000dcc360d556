// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"errors"
	"log"
	"os"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/spf13/pflag"
)

// TestMain lets the test's program be the server and the load generator of TestLatency.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) < 2:
	case os.Args[1] == "-c":
		os.Exit(serveOK())
	case os.Args[1] == "read":
		log.Fatal(read(os.Args[2]))
	case strings.HasPrefix(os.Args[1], "http://"):
		os.Exit(loadOnce(os.Args[1], os.Args[5]))
	}
	code := m.Run()
	os.RemoveAll(built)
	os.Exit(code)
}

// parse reads flags.
func parse(kind string, flags ...string) (*options, error) {
	o := New(kind).(*options)
	f := pflag.NewFlagSet(kind, pflag.ContinueOnError)
	o.AddFlags(f)
	return o, errors.Join(f.Parse(flags), o.Validate(context.Background()))
}

// Addresses are in their ranges in the largest cluster too, and not those of the clients.
func TestLimits(t *testing.T) {
	if last := frontend(maxServices - 1).Addr(); !cluster.Services.Contains(last) {
		t.Error(last)
	}
	if last := cluster.PodIP(maxAllEndpoints + 3_000_000); !cluster.Pods.Contains(last) || last.As4()[1] >= 244 {
		t.Error(last)
	}
}

func TestParse(t *testing.T) {
	o, err := parse(Scale)
	if err != nil || len(o.Services) != 1 || o.most() != 10_000 || o.Endpoints != 10 || o.Runs != 1 || len(o.Subjects) != len(proxies.Kinds) {
		t.Errorf("%+v %v", o, err)
	}
	for flags, want := range map[string]string{
		"--services 3":                      "--services: must be 32 to",
		"--services 100,1000":               "--services: how many numbers there are: must be 1 to 1",
		"--endpoints 0":                     "--endpoints",
		"--services 500000 --endpoints 100": "--endpoints: 500000 Services of 100",
		"--runs 0":                          "--runs",
		"--changes 0":                       "--changes",
		"--burst 0":                         "--burst:",
		"--timeout 0s":                      "--timeout",
		"--iptables xtables":                `--iptables: "xtables"`,
		"--subjects slipstream,calico":      `--subjects: "calico"`,
		"--subjects slipstream,slipstream":  "--subjects: slipstream is given twice",
		"--sample 10":                       "--sample",
	} {
		if _, err := parse(Scale, strings.Fields(flags)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", flags, err, want)
		}
	}
}

func TestParseLatency(t *testing.T) {
	o, err := parse(Latency)
	if err != nil || len(o.Services) != 5 || o.most() != 10_000 || o.Endpoints != 10 || o.Rounds != 5 || len(o.Subjects) != len(proxies.Kinds) {
		t.Errorf("%+v %v", o, err)
	}
	for flags, want := range map[string]string{
		"--endpoints 101": "--endpoints",
		"--rounds 0":      "--rounds",
		"--seconds 0":     "--seconds",
		"--rate 0":        "--rate",
		"--runs 2":        "--runs",
	} {
		if _, err := parse(Latency, strings.Fields(flags)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", flags, err, want)
		}
	}
}

func TestParseRules(t *testing.T) {
	o, err := parse(Rules)
	if err != nil || len(o.Services) != 4 || o.most() != 10_000 || o.Endpoints != 10 || o.Sample != 100 || len(o.Subjects) != 2 {
		t.Errorf("%+v %v", o, err)
	}
	for flags, want := range map[string]string{
		"--services 10,ten":                 `"--services" flag`,
		"--services 10,10":                  "--services: 10 after 10",
		"--services 0":                      "--services: 0 after 0",
		"--services 500001":                 "--services: 500001",
		"--services 500000 --endpoints 100": "--endpoints: 500000 Services of 100",
		"--sample 0":                        "--sample",
		"--subjects slipstream":             `--subjects: "slipstream" is none of slipstream-iptables, kube-proxy-iptables`,
		"--runs 2":                          "--runs",
		"--iptables xtables":                `--iptables: "xtables"`,
	} {
		if _, err := parse(Rules, strings.Fields(flags)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", flags, err, want)
		}
	}
}
