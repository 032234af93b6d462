// Record the arguments of a kernel from a running application, to tune it on real data afterwards.
//
//     kernelsearch::Capture capture("spmv.npz");          // before the launch
//     capture.input("x", x, {cols});
//     capture.scalar("alpha", alpha);
//     kernel<<<grid, block>>>(...);
//     capture.output("y", y, {rows});                     // after it: what is trusted
//     capture.save();
//
// Then: kernelsearch tune spmv.py --data spmv.npz
//
// Names are those of the operator's tensors; an array that is read and written is recorded twice,
// with input() before and output() after the launch. Pointers may lead to device memory where
// cuda_runtime.h was included before this header. C++17, no other dependency; not thread-safe: one
// object for one call. The file is a NumPy archive without compression.
#ifndef KERNELSEARCH_CAPTURE_HPP
#define KERNELSEARCH_CAPTURE_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace kernelsearch {

class Capture {
public:
    explicit Capture(std::string path) : path_(std::move(path)) {}

    // Contents before the launch. The shape is row-major, outermost extent first.
    template <typename T>
    void input(const std::string& name, const T* data, std::initializer_list<std::size_t> shape) {
        add(name, data, shape);
    }

    // Contents after the launch, which results of the tuned kernel are held against.
    template <typename T>
    void output(const std::string& name, const T* data, std::initializer_list<std::size_t> shape) {
        add(name + "@after", data, shape);
    }

    // A number that is passed by value.
    template <typename T>
    void scalar(const std::string& name, T value) {
        std::vector<unsigned char> bytes(sizeof(T));
        std::memcpy(bytes.data(), &value, sizeof(T));
        store(name, descriptor<T>(), {}, std::move(bytes));
    }

    // Write the archive. Throws std::runtime_error if it cannot be written or is too large (4 GiB).
    void save() const {
        std::FILE* file = std::fopen(path_.c_str(), "wb");
        if (file == nullptr) throw std::runtime_error("kernelsearch: cannot write " + path_);
        std::vector<unsigned char> directory;
        std::uint64_t at = 0;
        bool good = true;
        for (const Entry& entry : entries_) {
            const std::uint64_t size = entry.bytes.size();
            if (at + size > 0xfffffff0ull || size > 0xfffffff0ull) {
                std::fclose(file);
                throw std::runtime_error("kernelsearch: " + path_ + " would be larger than 4 GiB");
            }
            const std::uint32_t sum = crc(entry.bytes);
            std::vector<unsigned char> head;
            put(head, 0x04034b50u, 4);
            common(head, entry, sum);
            put(head, 0, 2);
            head.insert(head.end(), entry.name.begin(), entry.name.end());
            put(directory, 0x02014b50u, 4);
            put(directory, 20, 2);
            common(directory, entry, sum);
            put(directory, 0, 2);   // extra
            put(directory, 0, 2);   // comment
            put(directory, 0, 2);   // disk
            put(directory, 0, 2);   // internal attributes
            put(directory, 0, 4);   // external attributes
            put(directory, static_cast<std::uint32_t>(at), 4);
            directory.insert(directory.end(), entry.name.begin(), entry.name.end());
            good = good && write(file, head) && write(file, entry.bytes);
            at += head.size() + size;
        }
        std::vector<unsigned char> end;
        put(end, 0x06054b50u, 4);
        put(end, 0, 4);
        put(end, static_cast<std::uint32_t>(entries_.size()), 2);
        put(end, static_cast<std::uint32_t>(entries_.size()), 2);
        put(end, static_cast<std::uint32_t>(directory.size()), 4);
        put(end, static_cast<std::uint32_t>(at), 4);
        put(end, 0, 2);
        good = good && write(file, directory) && write(file, end);
        good = std::fclose(file) == 0 && good;
        if (!good) throw std::runtime_error("kernelsearch: cannot write all of " + path_);
    }

private:
    struct Entry {
        std::string name;
        std::vector<unsigned char> bytes;
    };

    template <typename T>
    static std::string descriptor() {
        static_assert(std::is_arithmetic_v<T>, "arrays of numbers can be recorded");
        if (std::is_same_v<T, bool>) return "|b1";
        const char kind = std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u';
        return std::string(sizeof(T) == 1 ? "|" : "<") + kind + std::to_string(sizeof(T));
    }

    template <typename T>
    void add(const std::string& name, const T* data, std::initializer_list<std::size_t> shape) {
        std::size_t count = 1;
        for (std::size_t extent : shape) count *= extent;
        std::vector<unsigned char> bytes(count * sizeof(T));
        if (!bytes.empty()) copy(bytes.data(), data, bytes.size());
        store(name, descriptor<T>(), shape, std::move(bytes));
    }

    static void copy(void* to, const void* from, std::size_t bytes) {
#ifdef __CUDA_RUNTIME_H__
        const cudaError_t status = cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
        if (status != cudaSuccess) {
            throw std::runtime_error(std::string("kernelsearch: cannot read an array to record: ") +
                                     cudaGetErrorString(status));
        }
#else
        std::memcpy(to, from, bytes);
#endif
    }

    void store(const std::string& name, const std::string& kind,
               std::initializer_list<std::size_t> shape, std::vector<unsigned char> data) {
        for (const Entry& entry : entries_) {
            if (entry.name == name + ".npy") {
                throw std::runtime_error("kernelsearch: " + name + " is recorded twice");
            }
        }
        std::string extents;
        for (std::size_t extent : shape) extents += std::to_string(extent) + ", ";
        if (shape.size() > 1) extents.resize(extents.size() - 2);
        std::string header = "{'descr': '" + kind + "', 'fortran_order': False, 'shape': (" +
                             extents + "), }";
        // Magic, version and length are 10 bytes; the whole is padded to 64 and ends in a newline.
        header.append((64 - (10 + header.size() + 1) % 64) % 64, ' ');
        header += '\n';
        Entry entry;
        entry.name = name + ".npy";
        const unsigned char magic[] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
        entry.bytes.assign(magic, magic + sizeof magic);
        put(entry.bytes, static_cast<std::uint32_t>(header.size()), 2);
        entry.bytes.insert(entry.bytes.end(), header.begin(), header.end());
        entry.bytes.insert(entry.bytes.end(), data.begin(), data.end());
        entries_.push_back(std::move(entry));
    }

    static void put(std::vector<unsigned char>& out, std::uint32_t value, int bytes) {
        for (int i = 0; i < bytes; ++i) out.push_back(static_cast<unsigned char>(value >> (8 * i)));
    }

    // The fields that a file's own header and the directory share.
    static void common(std::vector<unsigned char>& out, const Entry& entry, std::uint32_t sum) {
        put(out, 20, 2);     // version needed
        put(out, 0, 2);      // flags
        put(out, 0, 2);      // stored
        put(out, 0, 2);      // time
        put(out, 0x21, 2);   // 1980-01-01
        put(out, sum, 4);
        put(out, static_cast<std::uint32_t>(entry.bytes.size()), 4);
        put(out, static_cast<std::uint32_t>(entry.bytes.size()), 4);
        put(out, static_cast<std::uint32_t>(entry.name.size()), 2);
    }

    static bool write(std::FILE* file, const std::vector<unsigned char>& bytes) {
        return bytes.empty() || std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    }

    static std::uint32_t crc(const std::vector<unsigned char>& bytes) {
        static const std::array<std::uint32_t, 256> table = [] {
            std::array<std::uint32_t, 256> made{};
            for (std::uint32_t i = 0; i < 256; ++i) {
                std::uint32_t c = i;
                for (int k = 0; k < 8; ++k) c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
                made[i] = c;
            }
            return made;
        }();
        std::uint32_t c = 0xffffffffu;
        for (unsigned char b : bytes) c = table[(c ^ b) & 0xff] ^ (c >> 8);
        return ~c;
    }

    std::string path_;
    std::vector<Entry> entries_;
};

}  // namespace kernelsearch

#endif
