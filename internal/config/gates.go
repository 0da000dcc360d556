// SPDX-License-Identifier: Apache-2.0

package config

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// KubernetesVersion is the release of the kube-proxy that Slipstream replaces.
const KubernetesVersion = "v1.37.2"

// Feature gates.
const (
	Acceleration       = "KubeProxyAcceleration"               // KEP-4963: if it is disabled, there is no fast path
	externalIPs        = "AllowServiceExternalIPs"             // KEP-5707: if it is disabled, spec.externalIPs is ignored
	localhostNodePorts = "KubeProxyNFTablesLocalhostNodePorts" // KEP-6032
	ipvsMode           = "KubeProxyIPVS"                       // KEP-5495: if it is disabled, mode ipvs is invalid
)

// effective are the gates that have an effect on Slipstream.
var effective = []string{
	Acceleration, externalIPs, localhostNodePorts, ipvsMode, "AllAlpha", "AllBeta", string(logsapi.ContextualLogging),
	string(logsapi.LoggingAlphaOptions), string(logsapi.LoggingBetaOptions), string(logsapi.LoggingStableOptions),
}

// upstreamGates are kube-proxy's gates, each with stage, default, and whether the default
// is locked. testdata/gates prints it.
//
//go:embed gates.txt
var upstreamGates string

// versioned are the gates with an effect whose default differs between releases.
var versioned = map[featuregate.Feature]featuregate.VersionedSpecs{
	localhostNodePorts: {
		{Version: version.MustParse("1.37"), Default: false, PreRelease: featuregate.Alpha},
		{Version: version.MustParse("1.38"), Default: true, PreRelease: featuregate.Beta},
	},
}

// stages are what gates.txt says of the stage of a gate.
var stages = map[string]featuregate.FeatureSpec{
	"ALPHA": {PreRelease: featuregate.Alpha}, "BETA": {PreRelease: featuregate.Beta},
	"GA": {PreRelease: featuregate.GA}, "DEPRECATED": {PreRelease: featuregate.Deprecated},
}

// knownGates returns all gates, at their defaults.
var knownGates = sync.OnceValue(func() featuregate.MutableVersionedFeatureGate { return gatesOf(KubernetesVersion) })

// gatesOf returns the gates of a release.
func gatesOf(release string) featuregate.MutableVersionedFeatureGate {
	of := version.MustParse(release)
	gates := featuregate.NewVersionedFeatureGate(version.MajorMinor(of.Major(), of.Minor()))
	utilruntime.Must(errors.Join(logsapi.AddFeatureGates(gates), gates.AddVersioned(versioned)))
	more := map[featuregate.Feature]featuregate.FeatureSpec{
		Acceleration: {Default: true, PreRelease: featuregate.Beta},
		// A gate of older releases, which old configurations may still set.
		"MinimizeIPTablesRestore": {Default: true, PreRelease: featuregate.GA},
	}
	known := gates.GetAll()
	for line := range strings.Lines(upstreamGates) {
		var name, stage, on, locked string
		if _, err := fmt.Sscan(line, &name, &stage, &on, &locked); err != nil {
			panic(err) // the file is embedded
		}
		if _, ok := known[featuregate.Feature(name)]; ok {
			continue
		}
		spec := stages[stage]
		spec.Default, spec.LockToDefault = on == "true", locked == "true"
		more[featuregate.Feature(name)] = spec
	}
	utilruntime.Must(gates.Add(more))
	return gates
}

// validateGates rejects changes of locked gates.
func validateGates(set map[string]bool, path *field.Path) (errs field.ErrorList) {
	known := knownGates().GetAll()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if spec := known[featuregate.Feature(name)]; spec.LockToDefault && spec.Default != set[name] {
			errs = append(errs, field.Invalid(path.Key(name), set[name], "must be "+strconv.FormatBool(spec.Default)))
		}
	}
	return errs
}

// knowsGate reports whether kube-proxy has a gate.
func knowsGate(name string) bool {
	_, knows := knownGates().GetAll()[featuregate.Feature(name)]
	return knows
}

// Gates returns all feature gates as set. Gates with invalid values have their defaults.
func (c *Config) Gates() featuregate.FeatureGate {
	gates := knownGates().DeepCopy().(interface {
		featuregate.FeatureGate
		SetFromMapWithLogger(logger logr.Logger, set map[string]bool) error // without a line for each; notes report those that matter
	})
	valid := maps.Clone(c.KubeProxy.FeatureGates)
	maps.DeleteFunc(valid, func(name string, on bool) bool {
		return !knowsGate(name) || validateGates(map[string]bool{name: on}, nil) != nil
	})
	utilruntime.Must(gates.SetFromMapWithLogger(logr.Discard(), valid))
	return gates
}
