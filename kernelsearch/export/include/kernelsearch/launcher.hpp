// Picks a kernel of a bundle for the device and the sizes of a call, checks the whole launch plan,
// and queues it on a stream. C++17, CUDA driver API, any number of threads and contexts.
#ifndef KERNELSEARCH_LAUNCHER_HPP
#define KERNELSEARCH_LAUNCHER_HPP

#include <array>
#include <atomic>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "arithmetic.hpp"
#include "driver.hpp"

namespace kernelsearch {

enum class Code : int {
  ok = 0,
  no_driver = 1,      // libcuda.so.1 or one of its entry points is missing
  no_context = 2,     // no CUDA context is current in the calling thread
  bad_argument = 3,   // a null or misaligned pointer, or sizes that cannot be
  no_kernel = 4,      // no kernel of the bundle is for this device and these sizes
  over_limit = 5,     // a launch asks for more than the device has
  workspace = 6,      // the workspace given is too small or misaligned
  driver_error = 7,   // the driver refused; see Status::driver
  not_strict = 8,     // KERNELSEARCH_STRICT is set and no kernel was tuned on this device
};

// What became of a call; nothing was launched unless it is ok, or the driver failed in midst.
struct Status {
  Code code = Code::ok;
  int driver = 0;             // the driver's own error code
  const char* what = "";      // what was wrong: a text of the program, never freed
  explicit operator bool() const { return code == Code::ok; }

  std::string message() const {
    if (code == Code::ok) return "ok";
    std::string text = what;
    if (driver != 0) {
      const char* name = nullptr;
      const Driver& d = Driver::get();
      if (d.missing == nullptr) d.get_error_name(driver, &name);
      text += std::string(" (") + (name != nullptr ? name : "CUDA error") + ")";
    }
    return text;
  }
};

// Numbers about the device that launch plans may use.
struct Facts {
  int max_threads_per_block, max_shared_per_block, max_shared_per_sm, regs_per_sm;
  int max_threads_per_sm, sm_count, warp_size, l2_bytes, cache_line_bytes;
  int major, minor, memory_pools;
  char name[256];
};

// One call: sizes, tensors and scalars in the operator's order.
struct Call {
  const std::int64_t* sizes;
  const DevicePointer* tensors;
  const double* scalars;

  integer alignment(int tensor) const {
    const DevicePointer p = tensors[tensor];
    const DevicePointer low = p & (~p + 1);
    return p == 0 || low > 256 ? 256 : static_cast<integer>(low);
  }
};

constexpr int kMaxArguments = 64;
constexpr int kMaxMaps = 8;

// One step of a plan with everything in it: a fill (kernel < 0) or a launch.
struct Step {
  int kernel = -1;
  unsigned int grid[3], block[3], cluster[3], shared;
  bool clustered, cooperative;
  unsigned char value;
  int arguments;
  DevicePointer target;
  std::uint64_t bytes;
  std::uint64_t slots[kMaxArguments];
  signed char map[kMaxArguments];  // index of a tensor map, or -1
};


// Gathers the steps of a call. A generated function fills it; run() then launches all of it.
struct Plan {
  Arithmetic math;
  Status status;
  Step* steps;
  int count = 0;
  TensorMap maps[kMaxMaps];
  std::uint64_t workspace_bytes = 0;
  DevicePointer workspace = 0;
  bool measuring = false;        // only the size of the workspace is asked for

  void fail(Code code, const char* what, int driver = 0) {
    if (status.code == Code::ok) status = {code, driver, what};
  }

  // Returns the offset of one more buffer in the workspace.
  std::uint64_t reserve(integer elements, int element_bytes) {
    const integer bytes = math.mul(elements < 0 ? 0 : elements, static_cast<integer>(element_bytes));
    if (bytes > (static_cast<integer>(1) << 46)) {
      fail(Code::over_limit, "the workspace would be larger than any memory");
      return 0;
    }
    const std::uint64_t at = workspace_bytes;
    workspace_bytes = at + ((static_cast<std::uint64_t>(bytes) + 255) & ~std::uint64_t{255});
    return at;
  }

  unsigned int extent(integer value, integer least, integer most, const char* what) {
    if (value < least || value > most) fail(Code::over_limit, what);
    return static_cast<unsigned int>(value);
  }

  Step& launch(int kernel, std::array<integer, 3> grid, std::array<integer, 3> block,
               integer shared) {
    static const integer top[3] = {INT_MAX, 65535, 65535}, side[3] = {1024, 1024, 64};
    Step& s = steps[count++];
    s.kernel = kernel;
    for (int i = 0; i < 3; ++i) {
      s.grid[i] = extent(grid[i], 1, top[i], "a grid is larger than any device takes");
      s.block[i] = extent(block[i], 1, side[i], "a block is larger than any device takes");
    }
    s.shared = extent(shared, 0, INT_MAX, "a launch asks for too much shared memory");
    s.clustered = s.cooperative = false;
    s.arguments = 0;
    return s;
  }

  void cluster(Step& s, std::array<integer, 3> cluster) {
    s.clustered = true;
    integer blocks = 1;
    for (int i = 0; i < 3; ++i) {
      s.cluster[i] = extent(cluster[i], 1, 16, "a cluster has more than 16 blocks");
      blocks *= s.cluster[i];
      if (s.cluster[i] == 0 || s.grid[i] % s.cluster[i] != 0) {
        fail(Code::over_limit, "a grid is no multiple of its cluster");
      }
    }
    if (blocks > 16) fail(Code::over_limit, "a cluster has more than 16 blocks");
  }

  void fill(DevicePointer target, integer elements, int element_bytes, unsigned char value) {
    Step& s = steps[count++];
    s.kernel = -1;
    s.target = target;
    s.bytes = static_cast<std::uint64_t>(math.mul(elements < 0 ? 0 : elements,
                                                  static_cast<integer>(element_bytes)));
    s.value = value;
  }

  void pointer(Step& s, DevicePointer p) {
    s.map[s.arguments] = -1;
    s.slots[s.arguments++] = p;
  }
  void map(Step& s, int index) { s.map[s.arguments++] = static_cast<signed char>(index); }

  template <typename T>
  void whole(Step& s, integer value) {
    const T narrow = static_cast<T>(value);
    if (static_cast<integer>(narrow) != value) {
      fail(Code::bad_argument, "a size does not fit the type the kernel takes it in");
    }
    scalar(s, narrow);
  }
  template <typename T>
  void scalar(Step& s, T value) {
    s.map[s.arguments] = -1;
    s.slots[s.arguments] = 0;
    std::memcpy(&s.slots[s.arguments++], &value, sizeof value);
  }

  // A TMA descriptor. Shape and box come outermost first; the driver wants them innermost first.
  void tensor_map(int index, DevicePointer start, int type, int element_bytes, int rank,
                  const integer* shape, const integer* box, int swizzle, int promotion) {
    if (measuring || !status) return;
    if (Driver::get().encode_tiled == nullptr) {
      return fail(Code::no_driver, "the driver is too old for tensor maps");
    }
    std::uint64_t dims[5], strides[5];
    std::uint32_t boxes[5], ones[5];
    integer stride = element_bytes;
    for (int i = 0; i < rank; ++i) {
      const integer extent_ = shape[rank - 1 - i];
      if (extent_ < 1 || extent_ > (static_cast<integer>(1) << 32)) {
        return fail(Code::bad_argument, "a tensor is empty or too large for a tensor map");
      }
      dims[i] = static_cast<std::uint64_t>(extent_);
      if (i > 0) {
        if (stride % 16 != 0) {
          return fail(Code::bad_argument, "a row's stride is no multiple of 16 bytes");
        }
        strides[i - 1] = static_cast<std::uint64_t>(stride);
      }
      stride = math.mul(stride, extent_);
      boxes[i] = extent(box[rank - 1 - i], 1, 256, "a box of a tensor map is over 256");
      ones[i] = 1;
    }
    if (!status || math.failed()) return;
    const int result = Driver::get().encode_tiled(
        &maps[index], type, static_cast<std::uint32_t>(rank), reinterpret_cast<void*>(start), dims,
        strides, boxes, ones, 0, swizzle, promotion, 0);
    if (result != 0) fail(Code::driver_error, "a tensor map is refused", result);
  }
};

// A binary of an entry. `compute` images are PTX that the driver compiles for newer devices.
struct Image {
  int major, minor;
  bool exact;                    // only for devices of exactly this version (sm_90a)
  bool ptx;
  const void* data;
};

// One verified kernel with its params, and what it may be used for.
struct Entry {
  const char* id;
  int least_arch;                // 10 * major + minor
  bool exact_arch;
  const Image* images;
  int image_count;
  const char* const* kernels;    // names in the images
  int kernel_count;
  bool (*fits)(const Facts&);                     // constraints of the params on the device
  bool (*covers)(const Facts&, const Call&);      // domain: sizes and alignment
  void (*plan)(const Facts&, const Call&, Plan&);
};

// One line of the dispatch table: an entry that was measured on a device for a problem.
struct Record {
  const char* device;
  int arch;                      // 10 * major + minor
  const std::int64_t* sizes;
  int entry;
};

struct Table {
  const char* name;
  const Entry* entries;          // in order of preference where no record decides
  int entry_count;
  const Record* records;
  int record_count;
  int size_count;
};

// How an entry was chosen, from best to worst.
enum class Match : int { exact, same_device, same_capability, same_family, fallback, none };

inline const char* match_text(Match match) {
  switch (match) {
    case Match::exact: return "measured on this device at these sizes";
    case Match::same_device: return "measured on this device at the nearest sizes";
    case Match::same_capability: return "measured on another device of this compute capability";
    case Match::same_family: return "measured on another device of this family";
    case Match::fallback: return "not measured on any device like this one";
    default: return "none";
  }
}

struct Choice {
  int entry = -1;
  Match match = Match::none;
};

inline bool runs_on(const Image& image, const Facts& f) {
  const int device = 10 * f.major + f.minor, arch = 10 * image.major + image.minor;
  if (image.exact) return device == arch;
  return image.ptx ? device >= arch : f.major == image.major && f.minor >= image.minor;
}

// Machine code before PTX, and of the images that run the newest.
inline const Image* best_image(const Entry& entry, const Facts& f) {
  const Image* best = nullptr;
  for (int i = 0; i < entry.image_count; ++i) {
    const Image& image = entry.images[i];
    if (!runs_on(image, f)) continue;
    const int rank = (image.ptx ? 0 : 1000) + 10 * image.major + image.minor + image.exact;
    const int other = best == nullptr
        ? -1 : (best->ptx ? 0 : 1000) + 10 * best->major + best->minor + best->exact;
    if (rank > other) best = &image;
  }
  return best;
}

// The kernels of one entry, loaded in one context.
struct Loaded {
  std::vector<CUfunc_st*> functions;
  std::vector<int> static_shared, max_threads;
  std::unique_ptr<std::atomic<int>[]> dynamic_shared;
};

class Launcher {
 public:
  explicit Launcher(const Table& table) : table_(table) {}
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Says which entry a call would use, and why.
  Status choose(const Call& call, Choice& choice, const char** id = nullptr) {
    State* state = nullptr;
    Status status = this->state(state);
    if (!status) return status;
    choice = choose(*state, call);
    if (choice.entry < 0) return nothing();
    if (id != nullptr) *id = table_.entries[choice.entry].id;
    return status;
  }

  // Loads all kernels that may run on the current device, so that no later call has to.
  Status prepare() {
    State* state = nullptr;
    Status status = this->state(state);
    bool any = false;
    for (int i = 0; status && i < table_.entry_count; ++i) {
      if (!state->usable[i]) continue;
      any = true;
      Loaded* loaded = nullptr;
      status = load(*state, i, loaded);
    }
    return status && !any ? nothing() : status;
  }

  Status workspace_bytes(const Call& call, std::size_t& bytes) {
    return run(call, nullptr, 0, 0, &bytes);
  }

  // Queues a call. Without a workspace of the caller's, one is taken from the stream's pool.
  Status launch(const Call& call, Stream stream, DevicePointer workspace, std::size_t bytes) {
    return run(call, stream, workspace, bytes, nullptr);
  }

 private:
  static constexpr int kMaxSteps = 64;

  struct State {
    unsigned long long id;
    CUctx_st* context;
    Facts facts;
    std::vector<char> usable;
    std::vector<std::unique_ptr<Loaded>> loaded;
    std::unique_ptr<std::atomic<Loaded*>[]> ready;
    std::atomic<unsigned> said{0};
  };

  Status nothing() const {
    return {Code::no_kernel, 0,
            "no kernel of the bundle is for this device and these sizes and alignments"};
  }

  // Finds what is known of the current context; asks the device the first time.
  Status state(State*& found) {
    const Driver& d = Driver::get();
    if (d.missing != nullptr) return {Code::no_driver, 0, d.missing};
    CUctx_st* context = nullptr;
    const int result = d.get_current(&context);
    if (result != 0) return {Code::driver_error, result, "the current context is lost"};
    if (context == nullptr) return {Code::no_context, 0, "no CUDA context is current"};
    unsigned long long id = reinterpret_cast<std::uintptr_t>(context);
    if (d.context_id != nullptr) d.context_id(context, &id);
    {
      std::shared_lock<std::shared_mutex> lock(mutex_);
      for (auto& s : states_) {
        if (s->id == id && s->context == context) return found = s.get(), Status{};
      }
    }
    std::unique_lock<std::shared_mutex> lock(mutex_);
    for (auto& s : states_) {
      if (s->id == id && s->context == context) return found = s.get(), Status{};
    }
    auto fresh = std::make_unique<State>();
    fresh->id = id;
    fresh->context = context;
    Status status = ask(fresh->facts);
    if (!status) return status;
    const std::size_t n = static_cast<std::size_t>(table_.entry_count);
    fresh->loaded.resize(n);
    fresh->ready = std::make_unique<std::atomic<Loaded*>[]>(n);
    for (std::size_t i = 0; i < n; ++i) {
      const Entry& e = table_.entries[i];
      const int arch = 10 * fresh->facts.major + fresh->facts.minor;
      const bool right = e.exact_arch ? arch == e.least_arch : arch >= e.least_arch;
      fresh->usable.push_back(right && best_image(e, fresh->facts) != nullptr
                              && e.fits(fresh->facts));
      fresh->ready[i].store(nullptr);
    }
    found = fresh.get();
    states_.push_back(std::move(fresh));
    return {};
  }

  static Status ask(Facts& f) {
    const Driver& d = Driver::get();
    int device = 0;
    int result = d.get_device(&device);
    const struct { int* value; int kind; } wanted[] = {
        {&f.max_threads_per_block, kDeviceMaxThreadsPerBlock},
        {&f.max_shared_per_block, kDeviceSharedPerBlockOptin},
        {&f.max_shared_per_sm, kDeviceSharedPerMultiprocessor},
        {&f.regs_per_sm, kDeviceRegistersPerMultiprocessor},
        {&f.max_threads_per_sm, kDeviceMaxThreadsPerMultiprocessor},
        {&f.sm_count, kDeviceMultiprocessors}, {&f.warp_size, kDeviceWarpSize},
        {&f.l2_bytes, kDeviceL2Bytes}, {&f.major, kDeviceMajor}, {&f.minor, kDeviceMinor},
        {&f.memory_pools, kDeviceMemoryPools}};
    for (const auto& w : wanted) {
      if (result == 0) result = d.device_attribute(w.value, w.kind, device);
    }
    f.cache_line_bytes = 128;
    if (result == 0) result = d.device_name(f.name, sizeof f.name, device);
    return result == 0 ? Status{} : Status{Code::driver_error, result, "the device does not answer"};
  }

  double distance(const Call& call, const std::int64_t* sizes) const {
    double sum = 0;
    for (int i = 0; i < table_.size_count; ++i) {
      const double step = std::log(1.0 + static_cast<double>(call.sizes[i]))
                          - std::log(1.0 + static_cast<double>(sizes[i]));
      sum += step * step;
    }
    return sum;
  }

  Choice choose(const State& state, const Call& call) const {
    const Facts& f = state.facts;
    const char* alias = std::getenv("KERNELSEARCH_DEVICE_ALIAS");
    const char* name = alias != nullptr && *alias != '\0' ? alias : f.name;
    Choice best;
    double nearest = 0;
    for (int i = 0; i < table_.record_count; ++i) {
      const Record& r = table_.records[i];
      Match match = Match::none;
      if (std::strcmp(r.device, name) == 0) match = Match::same_device;
      else if (r.arch == 10 * f.major + f.minor) match = Match::same_capability;
      else if (r.arch / 10 == f.major) match = Match::same_family;
      else continue;
      const double far = distance(call, r.sizes);
      if (match == Match::same_device && far == 0) match = Match::exact;
      if (match > best.match || (match == best.match && far >= nearest)) continue;
      if (!state.usable[r.entry] || !table_.entries[r.entry].covers(f, call)) continue;
      best = {r.entry, match};
      nearest = far;
    }
    for (int i = 0; best.entry < 0 && i < table_.entry_count; ++i) {
      if (state.usable[i] && table_.entries[i].covers(f, call)) best = {i, Match::fallback};
    }
    return best;
  }

  // Says once for each context and kind of match when a kernel was not tuned on this very device.
  Status say(State& state, Choice choice) const {
    if (choice.match <= Match::same_device) return {};
    const char* strict = std::getenv("KERNELSEARCH_STRICT");
    if (strict != nullptr && *strict != '\0' && std::strcmp(strict, "0") != 0) {
      return {Code::not_strict, 0,
              "KERNELSEARCH_STRICT is set and no kernel for these sizes was measured on this device"};
    }
    const unsigned bit = 1u << static_cast<int>(choice.match);
    if ((state.said.fetch_or(bit) & bit) == 0) {
      std::fprintf(stderr, "kernelsearch: %s on %s uses %s: %s\n", table_.name, state.facts.name,
                   table_.entries[choice.entry].id, match_text(choice.match));
    }
    return {};
  }

  Status load(State& state, int index, Loaded*& loaded) {
    loaded = state.ready[index].load(std::memory_order_acquire);
    if (loaded != nullptr) return {};
    std::unique_lock<std::shared_mutex> lock(mutex_);
    loaded = state.ready[index].load(std::memory_order_acquire);
    if (loaded != nullptr) return {};
    const Driver& d = Driver::get();
    const Entry& entry = table_.entries[index];
    CUmod_st* module = nullptr;
    int result = d.module_load(&module, best_image(entry, state.facts)->data);
    if (result != 0) return {Code::driver_error, result, "the driver does not load the kernel"};
    auto fresh = std::make_unique<Loaded>();
    const std::size_t n = static_cast<std::size_t>(entry.kernel_count);
    fresh->dynamic_shared = std::make_unique<std::atomic<int>[]>(n);
    for (std::size_t k = 0; k < n; ++k) {
      CUfunc_st* function = nullptr;
      int shared = 0, threads = 0;
      result = d.module_function(&function, module, entry.kernels[k]);
      if (result == 0) result = d.function_get(&shared, kFunctionSharedBytes, function);
      if (result == 0) result = d.function_get(&threads, kFunctionMaxThreads, function);
      if (result != 0) {
        d.module_unload(module);
        return {Code::driver_error, result, "the binary does not have the kernel it should"};
      }
      fresh->functions.push_back(function);
      fresh->static_shared.push_back(shared);
      fresh->max_threads.push_back(threads);
      fresh->dynamic_shared[k].store(0);
    }
    loaded = fresh.get();
    state.loaded[index] = std::move(fresh);
    state.ready[index].store(loaded, std::memory_order_release);
    return {};
  }

  Status run(const Call& call, Stream stream, DevicePointer workspace, std::size_t given,
             std::size_t* wanted) {
    State* state = nullptr;
    Status status = this->state(state);
    if (!status) return status;
    const Choice choice = choose(*state, call);
    if (choice.entry < 0) return nothing();
    if (!(status = say(*state, choice))) return status;
    const Entry& entry = table_.entries[choice.entry];
    std::array<Step, kMaxSteps> steps;
    Plan plan;
    plan.steps = steps.data();
    plan.measuring = true;
    entry.plan(state->facts, call, plan);
    if (!finish(plan)) return plan.status;
    const std::uint64_t bytes = plan.workspace_bytes;
    if (wanted != nullptr) return *wanted = static_cast<std::size_t>(bytes), Status{};
    Loaded* loaded = nullptr;
    if (!(status = load(*state, choice.entry, loaded))) return status;
    const Driver& d = Driver::get();
    const bool own = bytes > 0 && workspace == 0;
    if (bytes > 0 && !own && (given < bytes || workspace % 256 != 0)) {
      return {Code::workspace, 0, "the workspace is too small, or not aligned to 256 bytes"};
    }
    if (own && state->facts.memory_pools == 0) {
      return {Code::workspace, 0, "this device has no memory pools: give a workspace"};
    }
    if (own) {
      const int result = d.allocate(&workspace, bytes, stream);
      if (result != 0) return {Code::driver_error, result, "no memory for the workspace"};
    }
    Plan bound;
    bound.steps = steps.data();
    bound.workspace = workspace;
    entry.plan(state->facts, call, bound);
    status = finish(bound) ? queue(*state, *loaded, bound, stream) : bound.status;
    if (own) {
      const int result = d.release(workspace, stream);
      if (status && result != 0) status = {Code::driver_error, result, "the workspace is stuck"};
    }
    return status;
  }

  static bool finish(Plan& plan) {
    if (plan.math.failed()) {
      plan.fail(Code::bad_argument, "the launch plan has no value for these sizes");
    }
    return static_cast<bool>(plan.status);
  }

  // Checks every step against the device before the first is launched.
  Status queue(State& state, Loaded& loaded, Plan& plan, Stream stream) {
    for (int i = 0; i < plan.count; ++i) {
      if (plan.steps[i].kernel < 0) continue;
      const Status status = allow(state.facts, loaded, plan.steps[i]);
      if (!status) return status;
    }
    for (int i = 0; i < plan.count; ++i) {
      const int result = start(loaded, plan, plan.steps[i], stream);
      if (result != 0) return {Code::driver_error, result, "a launch is refused"};
    }
    return {};
  }

  static Status allow(const Facts& facts, Loaded& loaded, const Step& s) {
    const Driver& d = Driver::get();
    const std::size_t k = static_cast<std::size_t>(s.kernel);
    const std::uint64_t threads =
        static_cast<std::uint64_t>(s.block[0]) * s.block[1] * s.block[2];
    if (threads > static_cast<std::uint64_t>(loaded.max_threads[k])) {
      return {Code::over_limit, 0, "a block has more threads than the kernel can have here"};
    }
    if (static_cast<std::uint64_t>(loaded.static_shared[k]) + s.shared
        > static_cast<std::uint64_t>(facts.max_shared_per_block)) {
      return {Code::over_limit, 0, "a block needs more shared memory than the device has"};
    }
    int allowed = loaded.dynamic_shared[k].load(std::memory_order_acquire);
    const int asked = static_cast<int>(s.shared);
    if (asked > allowed) {
      static std::mutex only_up;
      std::lock_guard<std::mutex> lock(only_up);
      allowed = loaded.dynamic_shared[k].load(std::memory_order_acquire);
      if (asked > allowed) {
        const int result = d.function_set(loaded.functions[k], kFunctionMaxDynamicShared, asked);
        if (result != 0) return {Code::driver_error, result, "shared memory is refused"};
        loaded.dynamic_shared[k].store(asked, std::memory_order_release);
      }
    }
    if (s.clustered && s.cluster[0] * s.cluster[1] * s.cluster[2] > 8) {
      const int result = d.function_set(loaded.functions[k], kFunctionNonPortableCluster, 1);
      if (result != 0) return {Code::driver_error, result, "the cluster is refused"};
    }
    if (s.cooperative) {
      int blocks = 0;
      const int result = d.occupancy(&blocks, loaded.functions[k], static_cast<int>(threads),
                                     s.shared);
      if (result != 0) return {Code::driver_error, result, "the occupancy is unknown"};
      if (static_cast<integer>(s.grid[0]) * s.grid[1] * s.grid[2]
          > static_cast<integer>(blocks) * facts.sm_count) {
        return {Code::over_limit, 0, "a cooperative grid does not fit the device at once"};
      }
    }
    return {};
  }

  static int start(Loaded& loaded, Plan& plan, Step& s, Stream stream) {
    const Driver& d = Driver::get();
    if (s.kernel < 0) {
      return s.bytes == 0 ? 0 : d.fill(s.target, s.value, static_cast<std::size_t>(s.bytes), stream);
    }
    void* arguments[kMaxArguments];
    for (int i = 0; i < s.arguments; ++i) {
      arguments[i] = s.map[i] < 0 ? static_cast<void*>(&s.slots[i]) : &plan.maps[s.map[i]];
    }
    LaunchAttribute attributes[2] = {};
    LaunchConfig config = {};
    for (int i = 0; i < 3; ++i) {
      config.grid[i] = s.grid[i];
      config.block[i] = s.block[i];
      attributes[0].value.cluster[i] = s.clustered ? s.cluster[i] : 0;
    }
    unsigned int count = 0;
    if (s.clustered) attributes[count++].id = kAttributeCluster;
    if (s.cooperative) {
      attributes[count].id = kAttributeCooperative;
      attributes[count++].value.cooperative = 1;
    }
    config.shared_bytes = s.shared;
    config.stream = stream;
    config.attributes = attributes;
    config.attribute_count = count;
    return d.launch(&config, loaded.functions[static_cast<std::size_t>(s.kernel)], arguments,
                    nullptr);
  }

  const Table& table_;
  std::shared_mutex mutex_;
  std::vector<std::unique_ptr<State>> states_;
};

}  // namespace kernelsearch

#endif
